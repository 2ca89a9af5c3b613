"""The files of a folder that somebody gives, and whether they are pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from medpfl.core.errors import UserError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
"""How the names of image files end, in lower case."""

_VOLUMES = (".dcm", ".nii", ".nii.gz")


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and below but hidden ones; links to folders are followed once.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'there is no such folder'}")

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}")

    return list(_walk(folder, refuse))


def pictures_below(folder: Path) -> list[Path]:
    """The image files of :func:`files_below`."""
    return [file for file in files_below(folder) if file.suffix.lower() in PICTURES]


def holds_pictures(folder: Path) -> bool:
    """Whether image files are in a folder or below, and no file that is called like DICOM or NIfTI."""
    found = False
    for file in _walk(folder, lambda error: None):
        name = file.name.lower()
        if name.endswith(_VOLUMES):
            return False
        found = found or name.endswith(PICTURES)
    return found


def _walk(folder: Path, refuse: Callable[[OSError], None]) -> Iterator[Path]:
    seen = set()
    for where, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in sorted(names) if not name.startswith("."))
