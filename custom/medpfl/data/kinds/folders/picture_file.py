"""From an image file to the square that a model sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from medpfl.core.errors import UserError, first_line
from medpfl.data.kinds.folders.patient_pattern import PatientPattern
from medpfl.data.kinds.folders.xray import is_dicom, xray, xray_size
from medpfl.data.picture import open_picture

if TYPE_CHECKING:
    from PIL.Image import Image


Fit = Literal["crop", "pad", "stretch"]
DARK = 64
"""Of 255: no pixel of pictures of 14 or 12 bits in files of 16 is above."""
TOO_DARK = f"16 bits, and no pixel above {DARK} of 255: values of 12 bits? rescale it first"
FAINT = (
    f"values within {DARK} of 255, so that hardly anything is seen: does the header declare more bits, or another "
    "window, than the values have?"
)
ONE_COLOUR = "all its pixels are of one colour"


class Reading(BaseModel):
    """How pictures are read; travels with a job.

    Attributes:
        size: edge length of a square, pixels.
        fit: how a picture becomes square: ``crop`` takes the largest square from its middle, ``pad`` adds black,
            ``stretch`` changes its proportions.
        channels: ``rgb`` or ``grey``; grey pictures have three equal channels in ``rgb``.
        patient: RE2's regular expression whose first group, found in a file's name, is the patient; where it is empty,
            a table's ``patient`` or a DICOM file's PatientID, else every picture is its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(default=64, ge=8, le=1024)
    fit: Fit = "crop"
    channels: Literal["rgb", "grey"] = "rgb"
    patient: PatientPattern = ""

    @property
    def mode(self) -> Literal["RGB", "L"]:
        """Pillow's, of a picture with these channels."""
        return "RGB" if self.channels == "rgb" else "L"


def read_picture(file: Path, reading: Reading) -> np.ndarray:
    """A picture, upright as its EXIF data say, or a DICOM X-ray image; antialiased where it becomes smaller.

    Transparent pixels are on black; 16-bit values are divided by 257. Of several pictures in a file it is the first.

    Returns:
        (C, size, size) uint8, C = 3 or 1.

    Raises:
        UserError: the file is no picture, is damaged, or has values that are neither 8 nor 16 bits; it is named.
    """
    return in_square(upright(file, reading.mode), reading)


def in_square(image: Image, reading: Reading) -> np.ndarray:
    """A picture in its own size, of :func:`upright`, as :func:`read_picture` gives it."""
    from PIL.Image import Resampling

    pixels = np.asarray(squared(image, reading.size, reading.fit, Resampling.BILINEAR))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if pixels.ndim == 3 else pixels[None].copy()


def upright(file: Path, mode: Literal["RGB", "L"]) -> Image:
    """A picture or DICOM X-ray image in its own size, as :func:`read_picture` has it; UserError likewise."""
    from PIL import ImageOps
    from PIL.TiffImagePlugin import PHOTOMETRIC_INTERPRETATION

    try:
        if is_dicom(file):
            return xray(file).convert(mode)
        with open_picture(file) as opened:
            # Pillow turns images of 8 bits so that 0 is black, and leaves those of 16 as they are.
            white_is_zero = getattr(opened, "tag_v2", {}).get(PHOTOMETRIC_INTERPRETATION) == 0
            return _eight_bits(ImageOps.exif_transpose(opened), white_is_zero).convert(mode)
    except Exception as error:  # Pillow raises errors of many kinds on damaged files.
        raise UserError(
            f"{file}: cannot be read ({first_line(error)}); repair it or take it out of the folder"
        ) from None


def squared(image: Image, size: int, fit: Fit, between: int) -> Image:
    """A picture or a mask as a square.

    Args:
        image: any.
        size: edge length, pixels.
        fit: see :class:`Reading`.
        between: how values between pixels are made, of ``PIL.Image.Resampling``.
    """
    from PIL import ImageOps

    if fit == "crop":
        return ImageOps.fit(image, (size, size), between)
    if fit == "pad":
        return ImageOps.pad(image, (size, size), between, color=0)
    return image.resize((size, size), between)


def place_in_square(width: int, height: int, size: int) -> tuple[int, int, int, int]:
    """Where :func:`squared` with ``pad`` puts a picture: left, top, width and height in the square, pixels of it."""
    from PIL import Image, ImageOps

    scaled = ImageOps.contain(Image.new("1", (width, height)), (size, size), Image.Resampling.NEAREST)
    left, top = (round((size - side) / 2) for side in scaled.size)
    return left, top, *scaled.size


def picture_size(file: Path) -> tuple[int, int]:
    """Width and height in pixels, upright. Only the file's head is read, which must be good."""
    if is_dicom(file):
        return xray_size(file)
    with open_picture(file) as image:
        return image.size[::-1] if _orientation(image) >= 5 else image.size


def faint(file: Path, pixels: np.ndarray) -> str:
    """That a picture's values (:func:`read_picture`'s) have fewer bits than its file has for them, in words; else ''.

    A file of 16 bits is dark then; a DICOM image may be bright, turned over, and a wrong window does the same to it.
    """
    if is_dicom(file):
        return FAINT if 0 < np.ptp(pixels) <= DARK else ""
    if pixels.max() > DARK:
        return ""
    with open_picture(file) as image:
        return TOO_DARK if image.mode.startswith("I") else ""


def of_one_colour(pixels: np.ndarray) -> bool:
    """Whether all pixels of a picture, (C, H, W), are alike."""
    return bool((pixels == pixels[:, :1, :1]).all())


def odd(file: Path, image: Image) -> list[str]:
    """What is odd with a picture, which is read all the same, in words.

    Args:
        file: it is from.
        image: of :func:`upright`, in its own size: padding it would hide that it is of one colour.
    """
    pixels = in_square(image, Reading(fit="stretch"))
    return list(filter(None, (ONE_COLOUR * of_one_colour(pixels), faint(file, pixels))))


def exif_turn(file: Path) -> int:
    """How EXIF data turn a picture: their orientation, 2 to 8, of which those from 5 exchange its sides; 0 if not."""
    if is_dicom(file):
        return 0
    with open_picture(file) as image:
        return _orientation(image)


def _orientation(image: Image) -> int:
    from PIL import ExifTags

    said = image.getexif().get(ExifTags.Base.Orientation, 1)
    return said if said in range(2, 9) else 0


def _eight_bits(image: Image, white_is_zero: bool) -> Image:
    """Any picture as one of 8 bits, without transparency; of 16 bits with black as 0, if the file has white so."""
    from PIL import Image as images

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 65535) or image.mode == "F":
            raise ValueError(f"values from {low:g} to {high:g}, mode {image.mode}: 8 or 16 bits are needed")
        values = 65535 - values if white_is_zero else values
        return images.fromarray(np.rint(values / 257).astype(np.uint8))
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", image.size, (0, 0, 0, 255)), coloured).convert("RGB")
    return image
