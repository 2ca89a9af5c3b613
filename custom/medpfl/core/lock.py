"""A folder that one run at a time may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from medpfl.core.errors import UserError

LOCK = ".lock"


def kernel_lock(file: Path, **options: Any) -> FileLock:
    """A lock that the kernel takes from a killed holder, by a file that stays; to be acquired.

    Args:
        file: the file, in a folder that is there.
        options: of :class:`filelock.FileLock`.

    Raises:
        OSError: the folder is not there. Acquiring raises it too, where the file system has no locks: a file whose
            existence is the lock would outlive a killed holder.
    """
    file.parent.stat()  # filelock would make the folder, and a site's state would begin anew in it
    return FileLock(file, fallback_to_soft=False, **options)


@contextmanager
def claimed(folder: Path, refusal: str) -> Iterator[None]:
    """Holds a folder's lock: two runs with one state would write over each other. A killed holder lets go of it.

    Raises:
        UserError: another run holds the lock (``refusal`` is the message), or the folder cannot be written to.
    """
    try:
        held = kernel_lock(folder / LOCK, blocking=False).acquire()
    except Timeout:
        raise UserError(refusal) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror})") from None
    with held:
        yield


@contextmanager
def run_folder(out: Path) -> Iterator[None]:
    """Makes a run's folder where it is missing, and holds its lock. A run that fails before it wrote leaves none.

    Raises:
        UserError: it cannot be made or written to, or another run holds the lock.
    """
    try:
        os.fspath(out).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{out} is no name in UTF-8, and states cannot be read from such a folder; choose another --out"
        ) from None
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        before = {file.name for file in out.iterdir()}
    except OSError as error:
        raise UserError(f"{out} cannot be made a run's folder ({error.strerror}); choose another --out") from None
    with claimed(out, f"{out} is in use by another run; wait for it or choose another --out"):
        try:
            yield
        except BaseException:
            if {file.name for file in out.iterdir()} - before == {LOCK}:
                (out / LOCK).unlink()
                for folder in made:
                    if not any(folder.iterdir()):
                        folder.rmdir()
            raise
