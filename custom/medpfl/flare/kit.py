"""Prepares a FLARE startup kit for this package: what ``medpfl site init`` changes in the kit's ``local`` folder.

FLARE's ``startup`` folder stays as it is. What a site has restricted is never loosened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medpfl.config import RunConfig, make_config
from medpfl.data.site_manifest import FILE, read_content, read_object
from medpfl.errors import UserError
from medpfl.flare.classes import AT_SITE, FILTER
from medpfl.flare.filter import AllowListFilter, flat
from medpfl.flare.kit_policy import give_key, set_policy, write_keys
from medpfl.flare.kit_rights import RESOURCES, allow_classes, limit_rights, put_guard, stop_log_streaming
from medpfl.site.contract import Contract
from medpfl.statefile import write_bytes

PRIVACY = "privacy.json"


@dataclass(frozen=True)
class Job:
    """What a job folder says about its sites.

    Attributes:
        name: the folder's.
        config: the run.
        allowed: names and shapes of the tensors that leave.
        contract: its hash.
    """

    name: str
    config: RunConfig
    allowed: dict[str, list[int] | None]
    contract: str = ""


@dataclass
class KitPlan:
    """What is to be changed.

    Attributes:
        changes: one line each, with what was there before.
        notes: what the site should know and this does not change.
        refusals: why the site's own policy, which is kept, refuses the job.
        contents: new content by file.
        keys: ``local`` folders that get a key.
    """

    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    contents: dict[Path, dict[str, Any]] = field(default_factory=dict)
    keys: list[Path] = field(default_factory=list)

    def change(self, file: Path, content: dict[str, Any], what: str, before: str, after: str) -> None:
        """Adds a change to a file."""
        self.contents[file] = content
        self.changes.append(f"{file.name}: {what}: {before} -> {after}")

    def write(self) -> None:
        """Writes the files, each as a whole; UserError if one cannot be written."""
        write_keys(self)
        for file, content in self.contents.items():
            like = file if file.exists() else file.with_name(RESOURCES + ".default")
            try:
                mode = like.stat().st_mode if like.exists() else None
                write_bytes(file, (json.dumps(content, indent=2) + "\n").encode())
                if mode is not None:
                    file.chmod(mode)
            except OSError as error:
                raise UserError(f"{file}: cannot be written: {error.strerror}") from None


def plan_kit(
    kit: Path,
    data: Mapping[str, Path],
    job: Job | None = None,
    *,
    byoc: bool = False,
    policy: Mapping[str, Any] | None = None,
) -> KitPlan:
    """What a kit needs for this package's jobs. Writes nothing.

    A server's kit needs the class allow-list alone.

    Args:
        kit: the folder with ``startup`` and ``local``.
        data: where the site has data, by the names that jobs use.
        job: the only job that may send tensors; without one, tensors of any name may leave, and nothing else.
        byoc: jobs may bring code, as FLARE's own rights or the site's say.
        policy: fields of the site's policy (:class:`medpfl.site.policy.SitePolicy`).

    Raises:
        UserError: it is no kit, a file in it is not as FLARE reads it, or data, a job, a policy or ``byoc`` are given
            for a server.
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
    plan = KitPlan()
    resources = allow_classes(plan, local, server=server)
    if not server:
        stop_log_streaming(plan, local / RESOURCES, resources)
        put_guard(plan, local / RESOURCES, resources, byoc=byoc)
        limit_rights(plan, local, byoc=byoc)
        _limit_what_leaves(plan, local / PRIVACY, job)
        _say_where(plan, local / FILE, data, job)
        set_policy(plan, local / FILE, policy or {}, job)
        give_key(plan, local)
    return plan


def read_job(folder: Path) -> Job:
    """What a job's sites send and need, from its client configuration.

    Raises:
        UserError: the folder is no job of this package, or its sites send different things.
    """
    files = sorted(folder.glob("*/config/config_fed_client.json"))
    if not files:
        raise UserError(f"{folder}: no job folder: APP/config/config_fed_client.json is needed (`medpfl export`)")
    found = []
    for file in files:
        content = read_object(file)
        filters = [f for chain in content.get("task_result_filters", []) for f in chain.get("filters", [])]
        allowed = [(f.get("args") or {}).get("allowed") for f in filters if f.get("path") == FILTER]
        given = [e.get("executor", {}).get("args", {}) for e in content.get("executors", [])]
        runs = [args.get("newcomers") or args.get("run_config") for args in given]  # of a job by which sites join
        if len(allowed) != 1 or not runs or not isinstance(runs[0], dict):
            raise UserError(f"{file}: not a job of this package: it has no list of what may leave")
        try:
            config, run = make_config(**runs[0]), make_config(**given[0]["run_config"])
        except (UserError, KeyError, TypeError) as error:
            raise UserError(f"{file}: not a job of this version of the package: {error}") from None
        named = [e.get("executor", {}).get("path") for e in content.get("executors", [])]
        if len(named) != 1 or named[0] not in AT_SITE:
            raise UserError(f"{file}: not a job of this package: one executor of its own is needed, it has {named}")
        contract = Contract(run, config if "newcomers" in given[0] else None).hash
        found.append(Job(folder.resolve().name, config, _listed(file, allowed[0]), contract))
    if any(other != found[0] for other in found):
        raise UserError(f"{folder}: its sites send different things; prepare the kit without --job")
    return found[0]


def _limit_what_leaves(plan: KitPlan, file: Path, job: Job | None) -> None:
    """A filter in every scope, for a job names its own; where the site's filter lists names already, that stays."""
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
        if before := _limit_scope(plan, file, scope, job, usual=scope["name"] == default):
            plan.change(file, policy, f"what may leave in scope {scope['name']}", before, after)


def _limit_scope(plan: KitPlan, file: Path, scope: dict[str, Any], job: Job | None, *, usual: bool) -> str | None:
    """Limits a scope in place, ``usual`` if it is the default; returns what might leave before, None if it stays."""
    filters = scope.setdefault("task_result_filters", [])
    own = [f for f in filters if _is_own_filter(f)]
    given = [(f.get("args") or {}).get("allowed") for f in own]
    listed = [_listed(file, allowed) for allowed in given if allowed is not None]
    if not own:
        others = len(filters)
        filters.append(_filter(job))
        return f"as {others} other filters say" if others else "anything"
    if job is None:
        return None
    if listed:
        _compare(plan, f"{file.name}, scope {scope['name']}", listed, job, usual=usual)
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


def _listed(file: Path, allowed: Any) -> dict[str, list[int] | None]:
    """Shapes by name of a list of what may leave; UserError if it is none."""
    if isinstance(allowed, list) and all(isinstance(name, str) for name in allowed):
        return dict.fromkeys(allowed)
    if isinstance(allowed, dict) and all(map(_is_shape, (shapes := flat(allowed)).values())):
        return shapes
    raise UserError(
        f"{file}: `allowed` of what may leave must be names of tensors, or their shapes by name "
        f'({{"conv1.weight": [6, 1, 5, 5], ...}}), not {json.dumps(allowed)[:80]}'
    )


def _is_shape(shape: Any) -> bool:
    return shape is None or (isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape))


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
