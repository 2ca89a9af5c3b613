"""Where data lie on this machine, and how a ``--data`` value names them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.permitted_code import is_function


def cache_folder() -> Path:
    """Where downloads and decoded images are kept: ``$XDG_CACHE_HOME/medpfl`` or ``~/.cache/medpfl``.

    Raises:
        UserError: the user has no home folder.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or at_home("~/.cache"))
    if base.parts[:1] == ("~",):
        raise UserError("this user has no home folder to keep a cache in: set XDG_CACHE_HOME to a folder")
    return base / "medpfl"


def folders() -> list[Path]:
    """Folders that are searched for a set's npz file, in order: ``$MEDPFL_DATA`` if it is set, then the cache.

    A cache that this user has not, or may not look into, as in the home of another one, is left out.
    """
    own = os.environ.get("MEDPFL_DATA")
    found = [at_home(own)] if own else []
    with suppress(UserError, PermissionError):
        cache = cache_folder()
        (cache / "a name").exists()
        found.append(cache)
    return found


def looked_in() -> str:
    """The same in words."""
    return " and ".join(map(str, folders())) or "no folder: set MEDPFL_DATA to one"


def private_folder(path: Path) -> Path:
    """Makes a folder of the cache, for no other user to read, and returns it.

    One that is there may be shared with a group. What all others may do in it is taken from them.

    Raises:
        UserError: it cannot be made, or is another user's, who leaves it open to all.
    """
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
        found, me = path.stat(), os.geteuid()
        if found.st_mode & 0o007:
            if me not in (0, found.st_uid):
                raise UserError(
                    f"{path}: the cache belongs to another user, and all users may look into it: patients' images do "
                    "not belong there; set XDG_CACHE_HOME to a folder of your own"
                )
            path.chmod(found.st_mode & 0o770)
    except OSError as error:
        raise UserError(
            f"{path}: the cache cannot be made: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from None
    return path


def is_path(data: str) -> bool:
    """Whether a ``--data`` value is written as a path, not as a name."""
    return os.sep in data or Path(data).suffix.lower() == ".json"


def places(data: str) -> list[Path]:
    """Folders and JSON files that a ``--data`` value may mean: of that path, or of that name in :func:`folders`."""
    found = [at_home(data)] if data else []
    if data and not is_path(data) and not is_function(data):
        found += [folder / name for folder in folders() for name in (data, f"{data}.json")]
    return [place for place in found if place.is_dir() or (place.suffix.lower() == ".json" and place.is_file())]
