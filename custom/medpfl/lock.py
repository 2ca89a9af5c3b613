"""A folder that one run at a time may use."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medpfl.errors import UserError

LOCK = ".lock"


@contextmanager
def claimed(folder: Path, refusal: str) -> Iterator[None]:
    """Holds a folder's lock: two runs with one state would write over each other. A killed holder lets go of it.

    Raises:
        UserError: another run holds the lock (``refusal`` is the message), or the folder cannot be written to.
    """
    try:
        lock = open(folder / LOCK, "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(refusal) from None
        yield


@contextmanager
def run_folder(out: Path) -> Iterator[None]:
    """Makes a run's folder where it is missing, and holds its lock. A run that fails before it wrote leaves none.

    Raises:
        UserError: it cannot be made or written to, or another run holds the lock.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made a run's folder ({error.strerror}); choose another --out") from None
    with claimed(out, f"{out} is in use by another run; wait for it or choose another --out"):
        try:
            yield
        except BaseException:
            if out in made and [file.name for file in out.iterdir()] == [LOCK]:
                (out / LOCK).unlink()
                for folder in made:
                    if not any(folder.iterdir()):
                        folder.rmdir()
            raise
