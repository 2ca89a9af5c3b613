"""What was decoded once, kept in a folder of this user's own; a file's name is a hash of what it was made from."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from medpfl.core.errors import TornFile, UserError
from medpfl.core.statefile import read_state, write_state
from medpfl.data.places import private_folder

log = logging.getLogger(__name__)
_DAY = 24 * 60 * 60
Made = tuple[dict[str, Tensor], dict[str, Any]]


def kept(folder: Path, key: str, make: Callable[[], Made]) -> Made:
    """Tensors and what is said of them, from the folder if they are in it, else made and put there.

    Args:
        folder: made if need be, for no other user to read.
        key: of what they are made from, :func:`key_of`.
        make: makes them.

    Raises:
        UserError: the folder cannot be written.
    """
    file = private_folder(folder) / f"{key}.safetensors"
    try:
        return read_state(file)
    except FileNotFoundError:
        pass
    except TornFile:
        log.warning("a damaged file of the cache is made again: %s", file)
    tensors, info = make()
    _forget_unfinished(folder)
    try:
        write_state(file, tensors, info=info, durable=False)
    except OSError as error:
        raise UserError(f"{file}: the cache cannot be written: {error.strerror}") from None
    return tensors, info


@cache
def _forget_unfinished(folder: Path) -> None:
    """Removes what a kill left half-written more than a day ago: images, by which a disk would fill unseen; once."""
    for file in folder.glob(".*.tmp"):
        with suppress(OSError):  # another process was first
            if time.time() - file.stat().st_mtime > _DAY:
                file.unlink()


def key_of(files: Iterable[Path], *how: Any) -> str:
    """A hash of how files are read and of each one's path, size and time of change; UserError if one is not there."""
    try:
        states = [(str(file), (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    return hashlib.blake2b(json.dumps([*how, states]).encode(), digest_size=20).hexdigest()
