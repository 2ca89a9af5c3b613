"""Where a site has the data that jobs name: ``medpfl.json`` in the ``local`` folder of its startup kit.

``{"data": {"chest-ct": "/data/ct/manifest.json", "blood": "/data/blood.npz"}}``; relative paths start from that folder.
``policy`` beside ``data`` is what the site allows (:mod:`medpfl.site.policy`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.near import did_you_mean
from medpfl.site.policy import HOSPITAL, OPEN, SitePolicy, policy_of

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

FILE = "medpfl.json"
_SECTIONS = ("data", "code", "policy")


def read_site_manifest(local: Path) -> dict[str, Path]:
    """Where a site's data are, by the names that jobs use; empty if there is no such file.

    Raises:
        UserError: the file is no such manifest.
    """
    return {name: local / at_home(path) for name, path in read_content(local / FILE)["data"].items()}


def read_content(file: Path) -> dict[str, Any]:
    """The file's content with ``data`` and ``code``; UserError if they are not names and paths, and modules.

    So it is where there is anything else in it but ``policy`` and notes.
    """
    content = read_object(file) if file.exists() else {}
    for name, value in content.items():
        if name in _SECTIONS:
            continue
        hint = did_you_mean(name, _SECTIONS)
        if hint or not isinstance(value, str):  # a misspelt policy would not hold
            raise UserError(
                f"{file}: {name!r} is nothing of this file's{hint}; beside {', '.join(_SECTIONS)} it may have notes, "
                "texts under other names"
            )
    data = content.setdefault("data", {})
    if not isinstance(data, dict) or not all(isinstance(path, str) and path for path in data.values()):
        raise UserError(f'{file}: data must say where each name is, e.g. {{"data": {{"chest-ct": "/data/ct"}}}}')
    code = content.get("code", [])
    if not isinstance(code, list) or not all(isinstance(module, str) and module for module in code):
        raise UserError(f'{file}: code must be a list of modules, e.g. {{"code": ["hospital_nets"]}}')
    return content


def permit_code(local: Path, config: RunConfig) -> None:
    """Permits, in this process, what code a configuration names, as far as the site's file lists it."""
    from medpfl.config.named_code import named_code
    from medpfl.core.permitted_code import permit

    listed = read_content(local / FILE).get("code", [])
    permit(*(module for _, spec in named_code(config) if (module := spec.partition(":")[0]) in listed))


def read_policy(local: Path, *, rehearsal: bool) -> SitePolicy:
    """The site's policy: what ``policy`` in the file says, over a hospital's default or, in a rehearsal, an open one.

    Raises:
        UserError: a field is unknown or out of range.
    """
    said = read_content(local / FILE).get("policy", {})
    return policy_of(said, OPEN if rehearsal else HOSPITAL, str(local / FILE))


def local_of(kit: Path) -> Path:
    """The folder of a startup kit that is the site's own; UserError if it is no kit."""
    if not (local := kit / "local").is_dir():
        raise UserError(f"{kit}: no startup kit: it has no folder local")
    return local


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object from a file; UserError if it is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not a JSON file: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: a JSON object is needed")
    return content
