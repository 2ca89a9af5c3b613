"""A picture file, opened as one of the formats that are read, whatever its name says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "JPEG2000", "BMP", "TIFF", "WEBP", "PPM")
"""As Pillow calls them: those of :data:`medpfl.data.files.PICTURES`. By itself it tries all that it knows on any file,
and for one that begins as PostScript it runs Ghostscript with what the file says."""


def open_picture(file: Path) -> Image:
    """A picture of which the head has been read, to be used in a ``with``; errors are Pillow's."""
    from PIL import Image

    return Image.open(file, formats=FORMATS)
