"""The files of a folder that somebody gives, their names, and whether they are pictures."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from medpfl.core.errors import UserError

NIFTI = (".nii", ".nii.gz")
"""How the names of NIfTI files end, in lower case."""

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
"""How the names of JPEG files end, in lower case; browsers on Windows save them as ``.jfif``."""

PICTURES = (".png", *JPEG, ".jp2", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
"""How the names of image files end, in lower case."""

UNREAD_PICTURES = (".heic", ".heif", ".avif", ".jxl", ".gif")
"""How those of images end that are not read."""

DICOM = (".dcm", ".dicom", ".ima")
"""How the names of DICOM files end, where they have an ending."""

_VOLUMES = (".dcm", *NIFTI)
_SYSTEMS = {
    "@eadir", "@recycle", "#recycle", "#snapshot", "~snapshot", "$recycle.bin", "__macosx", "lost+found",
    "system volume information",
}  # fmt: skip
"""Folders of previews, deleted files and copies that storage keeps beside a user's own, in lower case."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder does not count by its name: hidden, or a storage's own."""
    return name.startswith(".") or name.lower() in _SYSTEMS


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and below but hidden ones (:func:`is_hidden`); links to folders are followed once.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'there is no such folder'}")

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}")

    return list(walk(folder, refuse))


def unread_pictures(files: Iterable[Path]) -> str | None:
    """What is lost with images of formats that are not read, in words; None if there are none."""
    unread = [file for file in files if file.suffix.lower() in UNREAD_PICTURES]
    if not unread:
        return None
    are = "picture is" if len(unread) == 1 else "pictures are"
    forms = ", ".join(sorted({file.suffix.lower() for file in unread}))
    return f"{len(unread):,} {are} not read ({forms}), {unread[0]} first: save them as JPEG or PNG"


def holds_pictures(folder: Path) -> bool:
    """Whether image files are in a folder or below, and no file that is called like DICOM or NIfTI."""
    found = False
    for file in walk(folder, lambda error: None):
        name = file.name.lower()
        if name.endswith(_VOLUMES):
            return False
        found = found or name.endswith(PICTURES)
    return found


def composed(name: str) -> str:
    """A name with letters and their accents as one character each (NFC): file systems and tables differ in that."""
    return unicodedata.normalize("NFC", name)


def existing(folder: Path, name: str) -> Path:
    """The path of a name in a folder as the file system writes its accents; as it is where nothing is there."""
    path = folder / name
    if os.path.lexists(path) or name.isascii():
        return path
    place = folder
    for part in Path(name).parts:
        try:
            inside = _by_composed(str(place), place.stat().st_mtime_ns)
        except OSError:
            return path
        if composed(part) not in inside:
            return path
        place /= inside[composed(part)]
    return place


@lru_cache(maxsize=64)
def _by_composed(folder: str, changed: int) -> dict[str, str]:
    """The names in a folder, which last ``changed`` then, by how they are composed.

    For a table of thousands of rows it is looked through once.
    """
    return {composed(name): name for name in reversed(sorted(os.listdir(folder)))}


def below(folder: Path, path: Path) -> Path | None:
    """The path below a folder by the name that the folder is given, through links or not; None for one outside."""
    whole, root = path.resolve(), folder.resolve()
    return folder / whole.relative_to(root) if whole.is_relative_to(root) else None


def walk(folder: Path, refuse: Callable[[OSError], None]) -> Iterator[Path]:
    """The files of :func:`files_below`, one after the other; ``refuse`` is told of a folder that cannot be read.

    Pipes, sockets and devices are no files: reading one would wait for ever.
    """
    seen: set[str] = set()
    waiting = [folder]
    while waiting:
        where = waiting.pop()
        if (real := os.path.realpath(where)) in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(where) as listed:
                entries = sorted((e for e in listed if not is_hidden(e.name)), key=lambda entry: entry.name)
        except OSError as error:
            refuse(error)
            continue
        # Of most entries the listing says what they are, without a look at each; of links the file system does.
        folders = [entry.name for entry in entries if _is(entry.is_dir)]
        waiting += [where / name for name in reversed(folders)]
        for entry in entries:
            if not _is(entry.is_dir) and (_is(entry.is_file) or not is_special(where / entry.name)):
                yield where / entry.name


def _is(asked: Callable[[], bool]) -> bool:
    """What a listing's entry says of itself; False where the file system does not tell."""
    try:
        return asked()
    except OSError:
        return False


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device."""
    try:
        mode = path.stat().st_mode
    except OSError:  # whoever reads it says why it cannot be
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def nifti_stem(name: str) -> str:
    """The name of a NIfTI file without its ending, in whatever case that is written."""
    ending = next((ending for ending in NIFTI if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def is_nifti(name: str | Path) -> bool:
    """Whether a file's name ends as NIfTI files' do."""
    return str(name).lower().endswith(NIFTI)
