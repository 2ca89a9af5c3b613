"""The user whose process it is: paths that begin with ``~``, and a name."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def at_home(path: str | os.PathLike[str]) -> Path:
    """A path, with a home folder for ``~`` in front; as it is where there is none, as with ``~nobody-here/x``.

    A user whom the system does not know, as in a container, has none without ``$HOME``.
    """
    return Path(os.path.expanduser(path))


def whole(path: str | os.PathLike[str]) -> str:
    """The whole path, for who reads it in another folder: links followed, a home folder for ``~``."""
    return os.path.realpath(at_home(path))


def name_the_user() -> None:
    """Gives a user whom the system does not know, as in a container, the number as a name: MONAI's import asks for one.

    Processes that are started from this one inherit it.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())
