"""Which classes, code and commands a site lets in: ``local/resources.json`` and ``local/authorization.json`` of a kit.

Entries of this package are narrowed to exact classes; what a site has written itself is tightened, never loosened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import CLASS_LIST_ENFORCEMENT_MODE, ClassListEnforcementMode
from nvflare.fuel.sec.authz import parse_policy_config
from nvflare.security.security import COMMAND_CATEGORIES, CommandCategory

from medpfl.core.errors import UserError
from medpfl.flare.admin.kit_plan import RESOURCES, KitPlan
from medpfl.flare.job.classes import AT_SERVER, AT_SITE, exact, is_own
from medpfl.site.local_file import read_object

AUTHORIZATION = "authorization.json"
NO_CODE, GUARD = "medpfl.flare.admin.site_process.NoCode", "medpfl.flare.admin.site_process.SiteGuard"
AS_IT_STANDS = "medpfl.flare.admin.site_process.AsItStands"
BYOC = "byoc"
_FLARES_OWN = set(DEFAULT_CLASS_ALLOW_LIST)
_EVERYTHING = "*"
"""FLARE's sign for a class allow-list without limits."""
_ALL = ("submit_job", "clone_job", "report_version", BYOC, *dict.fromkeys(COMMAND_CATEGORIES.values()))
"""What a role with every right has, written out; FLARE gives no right that is not named."""
_DENIED = (
    CommandCategory.SHELL_COMMANDS,
    *(right for right, category in COMMAND_CATEGORIES.items() if category == CommandCategory.SHELL_COMMANDS),
    "report_env",
    "show_errors",
    "configure_job_log",
    "configure_site_log",
    "call",
    "server-predeployed-flwr",
)
"""Rights to files, folders and log lines of a site, to what it logs, and to code by other ways than byoc."""
BYOC_NOTE = (
    "jobs may bring code (BYOC): whoever may submit jobs can do here all that FLARE's process may, and filters see "
    "only what that code hands them"
)


def allow_classes(plan: KitPlan, local: Path, *, server: bool) -> dict[str, Any]:
    """FLARE's resources with this package's classes allowed; FLARE reads the default file only if there is no other.

    Where nothing but FLARE's own list is said, only these classes are allowed: some of that list's read and send a
    site's logs, or read tables and write files at the job's word.
    """
    file = local / RESOURCES
    source = file if file.exists() else local / f"{RESOURCES}.default"
    resources = read_object(source) if source.exists() else {"format_version": 2}
    classes = AT_SERVER if server else AT_SITE
    listed = resources.get("class_allow_list")
    if listed is not None and not (isinstance(listed, list) and all(isinstance(entry, str) for entry in listed)):
        raise UserError(f"{source}: class_allow_list must be a list of names, not {listed!r}")
    if resources.get(CLASS_LIST_ENFORCEMENT_MODE) == ClassListEnforcementMode.WARN.value:
        plan.notes.append(f"{source.name}: class_list_enforcement_mode is 'warn': every class is allowed here")
    if listed is not None and _EVERYTHING in listed:
        plan.notes.append(f"{source.name}: class_allow_list has '*': every class is allowed here")
        return resources
    wanted = _wanted(listed, classes)
    if wanted != listed:
        resources["class_allow_list"] = wanted
        exactly = [entry for entry in wanted if entry in classes]
        others = f", {len(wanted) - len(exactly)} of the site's own" if len(wanted) > len(exactly) else ""
        after = f"{len(exactly)} exact classes of this package's jobs{others}"
        plan.change(file, resources, "class_allow_list", _said(listed), after)
    if set(classes) - set(wanted):
        plan.notes.append(f"{source.name}: class_allow_list has some of this package's classes; it is kept")
    if set(wanted) >= _FLARES_OWN:
        plan.notes.append(
            f"{source.name}: class_allow_list is kept; it has FLARE's own classes too, of which some send logs, read "
            "tables or write files as a job says"
        )
    return resources


def _wanted(listed: list[str] | None, classes: tuple[str, ...]) -> list[str]:
    """A class allow-list with this package's entries narrowed, or with its classes where it has none."""
    own = [entry for entry in listed or () if is_own(entry)]
    others = [entry for entry in listed or () if not is_own(entry)]
    if own and set(own) <= set(classes):
        return list(listed)
    if listed is None or set(others) == _FLARES_OWN:
        return list(classes)
    narrowed = dict.fromkeys(path for entry in own for path in exact(entry, classes))
    return [*others, *(narrowed or (path for path in classes if path not in others))]


def _said(listed: list[str] | None) -> str:
    if listed is None:
        return "none (FLARE's own)"
    kind = "FLARE's own" if {entry for entry in listed if not is_own(entry)} == _FLARES_OWN else "the site's"
    own = [entry for entry in listed if is_own(entry)]
    return f"{len(listed)} entries ({kind}{f', with {own[0]!r}' if own else ''})"


def stop_log_streaming(plan: KitPlan, file: Path, resources: dict[str, Any]) -> None:
    """Has FLARE not send the site's error log."""
    before = resources.get("allow_log_streaming")
    if before is not False:
        resources["allow_log_streaming"] = False
        said = "not said (FLARE sends error_log.txt)" if before is None else json.dumps(before)
        plan.change(file, resources, "allow_log_streaming", said, "false")


def put_guard(plan: KitPlan, file: Path, resources: dict[str, Any], *, byoc: bool) -> None:
    """Puts :mod:`medpfl.flare.admin.site_process` into FLARE's process; with ``byoc`` without what refuses code."""
    components = resources.setdefault("components", [])
    if not isinstance(components, list):
        raise UserError(f"{file}: components must be a list")
    if not any(isinstance(c, dict) and c.get("path") == GUARD for c in components):
        components.append({"id": "medpfl_guard", "path": GUARD, "args": {}})
        plan.change(file, resources, "files and logs of this site", "as authorization.json says", "never served")
    validator = resources.get("app_validator")
    if byoc and validator == {"path": NO_CODE}:
        del resources["app_validator"]
        plan.change(file, resources, "jobs that bring code", "refused", "as authorization.json says")
    elif not byoc and validator is None:
        resources["app_validator"] = {"path": NO_CODE}
        plan.change(file, resources, "jobs that bring code", "as authorization.json says", "refused (--allow-byoc)")
    elif validator not in (None, {"path": NO_CODE}):
        plan.notes.append(f"{file.name}: its own app_validator is kept")


def put_validator(plan: KitPlan, file: Path, resources: dict[str, Any]) -> None:
    """Has a server refuse jobs whose configuration FLARE would fill in from its environment."""
    validator = resources.get("app_validator")
    if validator is None:
        resources["app_validator"] = {"path": AS_IT_STANDS}
        plan.change(file, resources, "jobs that FLARE fills in from this server's environment", "taken", "refused")
    elif validator != {"path": AS_IT_STANDS}:
        plan.notes.append(f"{file.name}: its own app_validator is kept")


def limit_rights(plan: KitPlan, local: Path, *, byoc: bool) -> None:
    """Denies every role code in jobs, unless ``byoc``, and what returns files, folders and log lines of the site."""
    file, default = local / AUTHORIZATION, local / f"{AUTHORIZATION}.default"
    if not file.exists() and not default.exists():
        raise UserError(f"{default}: missing, so FLARE would let all users do all here; provision the kit again")
    given = {name: tightened(_policy(default), byoc=name) for name in (True, False)} if default.exists() else {}
    said = _policy(file) if file.exists() else None
    own = said is not None and said not in given.values()
    wanted = tightened(said, byoc=byoc) if own else given[byoc]
    if wanted != said:
        closed = "files, logs and folders of this site" + ("" if byoc else ", code in jobs (byoc)")
        plan.change(file, wanted, "rights", "the site's own" if said else "FLARE's own", f"none to {closed}")
    if byoc and own and not any(_grants(rights, BYOC) for rights in wanted["permissions"].values()):
        plan.notes.append(f"{file.name}: the site's own file gives nobody the right byoc; it is kept")
    elif byoc:
        plan.notes.append(BYOC_NOTE)


def tightened(policy: Mapping[str, Any], *, byoc: bool) -> dict[str, Any]:
    """A policy of FLARE's form in which no role has the rights that a site denies.

    Args:
        policy: as FLARE reads it; rights that it does not give stay ungiven.
        byoc: the right to bring code stays as it is.
    """
    denied = _DENIED if byoc else (*_DENIED, BYOC)
    permissions: dict[str, Any] = {}
    for role, said in policy["permissions"].items():
        if isinstance(said, dict):
            rights = {_normal(right): condition for right, condition in said.items()}
        elif _is_none(said):
            permissions[role] = said
            continue
        else:
            rights = dict.fromkeys(_ALL, said)
        for right in denied:
            if _grants(rights, right):
                rights[right] = "none"
        permissions[role] = rights
    return {**policy, "permissions": permissions}


def _policy(file: Path) -> dict[str, Any]:
    content = read_object(file)
    _, error = parse_policy_config(content, COMMAND_CATEGORIES)
    if error:
        raise UserError(f"{file}: not as FLARE reads it: {error}")
    return content


def _grants(rights: Any, right: str) -> bool:
    if not isinstance(rights, dict):
        return not _is_none(rights)
    condition = rights.get(right, rights.get(COMMAND_CATEGORIES.get(right)))
    return condition is not None and not _is_none(condition)


def _is_none(condition: Any) -> bool:
    return isinstance(condition, str) and _normal(condition) in ("none", "no")


def _normal(name: str) -> str:
    return " ".join(name.lower().split())
