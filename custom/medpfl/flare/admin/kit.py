"""Prepares a FLARE startup kit for this package: what ``medpfl site init`` changes in the kit's ``local`` folder.

FLARE's ``startup`` folder stays as it is. What a site has restricted is never loosened, but by a new list that it
asks for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError
from medpfl.flare.admin.kit_plan import RESOURCES, KitPlan
from medpfl.flare.admin.kit_policy import give_key, set_policy
from medpfl.flare.admin.kit_rights import allow_classes, limit_rights, put_guard, put_validator, stop_log_streaming
from medpfl.flare.job.classes import FILTER
from medpfl.flare.job.folder import Job, listed
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.site.local_file import FILE, permit_code, read_content, read_object
from medpfl.site.policy import SitePolicy

PRIVACY = "privacy.json"


def plan_kit(
    kit: Path,
    data: Mapping[str, Path],
    job: Job | None = None,
    *,
    byoc: bool = False,
    new_list: bool = False,
    policy: Mapping[str, Any] | None = None,
) -> KitPlan:
    """What a kit needs for this package's jobs. Writes nothing.

    A server's kit needs the class allow-list, and what refuses jobs that FLARE fills in there.

    Args:
        kit: the folder with ``startup`` and ``local``.
        data: where the site has data, by the names that jobs use.
        job: the only job that may send tensors; without one, tensors of any name may leave, and nothing else.
        byoc: jobs may bring code, as FLARE's own rights or the site's say.
        new_list: the job's list of what may leave takes the place of that of the default scope. Other scopes' stay.
        policy: fields of the site's policy (:class:`medpfl.site.policy.SitePolicy`).

    Raises:
        UserError: it is no kit, a file in it is not as FLARE reads it, data, a job, a policy or ``byoc`` are given for
            a server, or a new list without a job; or the job lists as what may leave what it does not send.
    """
    local, startup = kit / "local", kit / "startup"
    server = (startup / "fed_server.json").is_file()
    if not local.is_dir() or not (server or (startup / "fed_client.json").is_file()):
        raise UserError(
            f"{kit}: no site's startup kit: startup/fed_client.json and local/ are needed; `nvflare provision` makes "
            "one for each site"
        )
    if server and (data or job or byoc or policy):
        raise UserError(f"{kit}: the server's kit: it has no data and no policy on what leaves; leave the options out")
    if new_list and job is None:
        raise UserError("--new-list: whose? give --job JOB too, whose list of what may leave takes the old one's place")
    plan = KitPlan()
    if any(character.isspace() for character in os.path.abspath(kit)):
        plan.notes.append(f"{kit}: FLARE's start.sh starts nothing in a folder with a blank in its path; move the kit")
    resources = allow_classes(plan, local, server=server)
    if server:
        put_validator(plan, local / RESOURCES, resources)
    else:
        stop_log_streaming(plan, local / RESOURCES, resources)
        put_guard(plan, local / RESOURCES, resources, byoc=byoc)
        limit_rights(plan, local, byoc=byoc)
        _say_where(plan, local / FILE, data, job)
        set_policy(plan, local / FILE, policy or {}, job)
        _limit_what_leaves(plan, local / PRIVACY, _as_it_sends(job, local, plan.policy), new_list=new_list)
        give_key(plan, local)
    return plan


def _as_it_sends(job: Job | None, local: Path, policy: SitePolicy) -> Job | None:
    """The job, if one is given, held against its own configuration: its network is built for that."""
    if job is None:
        return None
    from medpfl.flare.job.sent import as_it_sends

    permit_code(local, job.run)
    return as_it_sends(job, policy.network)[0]


def _limit_what_leaves(plan: KitPlan, file: Path, job: Job | None, *, new_list: bool) -> None:
    """A filter in every scope, for a job names its own; one of the site's that lists names stays but for a new list."""
    policy = read_object(file) if file.exists() else {}
    after = "only this package's answers, tensors of any name" if job is None else f"only what {job.name} sends"
    if not policy.get("scopes"):
        policy |= {"scopes": [{"name": "medpfl", "task_result_filters": [_filter(job)]}], "default_scope": "medpfl"}
        plan.change(file, policy, "what may leave in scope medpfl", "anything", after)
        return
    scopes = policy["scopes"]
    if not isinstance(scopes, list) or not all(isinstance(scope, dict) and scope.get("name") for scope in scopes):
        raise UserError(f"{file}: scopes must be a list of JSON objects, each with a name")
    if not (default := policy.get("default_scope")):
        plan.notes.append(f"{file.name}: no default_scope, so jobs without a scope are refused here; it is kept")
    elif default not in [scope["name"] for scope in scopes]:
        raise UserError(f"{file}: default_scope {default!r} is none of its scopes")
    for scope in scopes:
        if before := _limit_scope(plan, file, scope, job, usual=scope["name"] == default, new_list=new_list):
            plan.change(file, policy, f"what may leave in scope {scope['name']}", before, after)


def _limit_scope(
    plan: KitPlan, file: Path, scope: dict[str, Any], job: Job | None, *, usual: bool, new_list: bool
) -> str | None:
    """Limits a scope in place, ``usual`` if it is the default; returns what might leave before, None if it stays."""
    filters = scope.setdefault("task_result_filters", [])
    if not isinstance(filters, list) or not all(isinstance(entry, dict) for entry in filters):
        raise UserError(f"{file}: task_result_filters of scope {scope['name']} must be a list of JSON objects")
    own = [f for f in filters if _is_own_filter(f)]
    given = [(f.get("args") or {}).get("allowed") for f in own]
    lists = [listed(file, allowed) for allowed in given if allowed is not None]
    if not own:
        others = len(filters)
        filters.append(_filter(job))
        return f"as {others} other filters say" if others else "anything"
    if job is None:
        return None
    if lists and new_list and usual:
        renewed = [f for f, allowed in zip(own, given, strict=True) if allowed is not None and allowed != job.allowed]
        for filter_ in renewed:
            filter_["args"]["allowed"] = job.allowed
        new = {name for names in lists for name in AllowListFilter(names).refuses(job.allowed)}
        had = f"a list of {', '.join(str(len(names)) for names in lists)} tensors"
        return f"{had}, which {len(new)} of the {len(job.allowed)} now are not in" if renewed else None
    if lists:
        _compare(plan, f"{file.name}, scope {scope['name']}", lists, job, usual=usual)
        return None
    own[0]["args"] = (own[0].get("args") or {}) | {"allowed": job.allowed}
    return "tensors of any name"


def _filter(job: Job | None) -> dict[str, Any]:
    return {"path": FILTER, "args": {"allowed": None if job is None else job.allowed}}


def _is_own_filter(entry: dict[str, Any]) -> bool:
    """Whether it is this package's filter and looks at what goes out, as filters of results do by default."""
    return entry.get("path") == FILTER and str(entry.get("direction", "out")).lower() != "in"


def _compare(plan: KitPlan, where: str, lists: list[dict[str, list[int] | None]], job: Job, *, usual: bool) -> None:
    """Says what the site's own lists, which are kept, mean for a job."""
    refused = dict.fromkeys(name for allowed in lists for name in AllowListFilter(allowed).refuses(job.allowed))
    if refused:
        lacks = (
            f"{where}: its own list is kept; it lacks {len(refused)} of the {len(job.allowed)} tensors that {job.name} "
        )
        lacks += f"sends, the first is {next(iter(refused))!r}, so "
        if usual:
            plan.refusals.append(f"{lacks}{job.name} will be refused here")
        else:
            plan.notes.append(f"{lacks}it would be refused in this scope")
    elif any(AllowListFilter(job.allowed).refuses(allowed) for allowed in lists):
        plan.notes.append(f"{where}: its own list is kept; it allows more than {job.name} sends")


def _say_where(plan: KitPlan, file: Path, data: Mapping[str, Path], job: Job | None) -> None:
    content = read_content(file)
    for name, path in data.items():
        before, after = content["data"].get(name), str(path)
        if before != after:
            content["data"][name] = after
            plan.change(file, content, name, before or "not said", after)
    if job is None or (wanted := job.config.data) in data:
        return
    takes = f"{job.name} takes data called {wanted!r}"
    if wanted not in content["data"]:
        known = ", ".join(content["data"]) or "no name"
        plan.notes.append(f"{takes}, and {file.name} has {known}")
    else:
        plan.notes.append(f"{takes}: {content['data'][wanted]}, not given with --data and so not checked")
