"""``--data NAME=PATH`` of the site's commands."""

from __future__ import annotations

from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.home import at_home


def named_path(item: str) -> tuple[str, Path]:
    """NAME and whole path of a ``--data`` value; a path alone gets its manifest's name, or its own."""
    name, equals, rest = item.partition("=")
    alone = not equals or at_home(item).exists()
    path = at_home(item if alone else rest).absolute()
    if alone and not path.exists():
        raise UserError(f"--data {item}: there is no {path}; give NAME=PATH, e.g. chest-ct=/data/ct")
    if alone:
        from medpfl.data.kinds.registry import kind_of

        name = kind_of(str(path), {}).name_of(path)
    if not name.strip(" .") or any(sign in name for sign in "/\\:=") or name.lower().endswith(".json"):
        raise UserError(f"--data {item}: {name!r} is no name for data: give NAME=PATH, NAME without / \\ : = and .json")
    return name, path
