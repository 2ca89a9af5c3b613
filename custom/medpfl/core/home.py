"""Paths that begin with ``~``."""

from __future__ import annotations

import os
from pathlib import Path


def at_home(path: str | os.PathLike[str]) -> Path:
    """A path, with a home folder for ``~`` in front; as it is where there is none, as with ``~nobody-here/x``.

    A user whom the system does not know, as in a container, has none without ``$HOME``.
    """
    return Path(os.path.expanduser(path))
