"""Whether the process that wrote something still runs: it holds a lock, which the kernel takes from it when it ends.

Its number and its machine's name could not tell: a container that is started again has another name and the same
numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from medpfl.core.lock import kernel_lock

_PREFIX, _SUFFIX = "process-", ".lock"
_held: dict[tuple[int, Path], tuple[str, FileLock]] = {}
"""By process, since a fork inherits them, and folder: what the process is called there, and the lock that it keeps."""


def this_process(folder: Path) -> str:
    """What this process is called by those that use a folder: the same at every call until it ends.

    Raises:
        OSError: the folder is not there or not to be written, or its file system has no locks.
    """
    mine = os.getpid(), folder.resolve()
    if mine not in _held:
        for file in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            is_gone(folder, file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        name = uuid4().hex
        lock = kernel_lock(_file(folder, name), mode=0o600, thread_local=False)
        lock.acquire()
        _held[mine] = name, lock
    return _held[mine][0]


def is_gone(folder: Path, process: str) -> bool:
    """Whether a process of :func:`this_process` has ended. One whose lock the reader may not ask for still runs.

    Raises:
        TypeError: ``process`` is no name.
    """
    file = _file(folder, process)
    if not file.is_file():
        return True
    try:
        with kernel_lock(file, blocking=False):
            file.unlink()
    except (Timeout, PermissionError):
        return False
    return True


def _file(folder: Path, process: str) -> Path:
    return folder / (_PREFIX + process + _SUFFIX)
