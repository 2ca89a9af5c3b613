"""Files that are there as a whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex


def write_bytes(path: Path, content: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Replaces a file's content as a whole: readers and a kill see the old content or the new, never a part.

    Args:
        path: the file.
        content: all of it.
        durable: wait for the disk, which then has the file's name too.
        mode: who may read and write it, from the first moment on; by default as the process makes files.

    Raises:
        OSError: it cannot be written, or is a device or a pipe, which would be replaced; names the file.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "is no ordinary file; give the name of one", str(path))
    # Another container that shares the folder may have a process of the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.tmp")
    try:
        with _naming(path):
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode or 0o666), "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)  # whatever the process takes away
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if durable:
                flush(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """The same of a text, in a folder that is made if it is missing; the disk is not waited for. A link stays one."""
    target = Path(os.path.realpath(path) if os.path.islink(path) else path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, text.encode(), durable=False)
    return Path(path)


def flush_folder(folder: Path) -> None:
    """Waits until all that is in a folder is on the disk. Raises OSError."""
    for place in (*folder.rglob("*"), folder):
        flush(place)


def flush(place: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk. Raises OSError."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not know it of folders
            raise
    finally:
        os.close(handle)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Has an OSError name the file that was to be written, not a temporary one or, as of a full disk, none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # none of the system's
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
