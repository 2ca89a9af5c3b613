"""A picture and its mask, brought to one square."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from medpfl.core.errors import UserError, first_line
from medpfl.data.files import JPEG
from medpfl.data.kinds.folders.picture_file import Reading as PictureReading
from medpfl.data.kinds.folders.picture_file import exif_turn, picture_size, read_picture, squared
from medpfl.data.kinds.masks.classes_of import to_classes, values_in
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.picture import open_picture

if TYPE_CHECKING:
    from PIL.Image import Image


_BLACK = 15
"""The most of red, green and blue that a palette's black has, of 255."""


class Mask(NamedTuple):
    """A mask in its own size.

    Attributes:
        classes: (H, W) uint8.
        values: those of the file.
    """

    classes: np.ndarray
    values: tuple[int, ...]


def read_pair(pair: Pair, reading: Reading, count: int) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """A picture, antialiased, and its mask by the nearest pixel, both made square alike.

    Returns:
        (C, size, size) uint8, (size, size) uint8 classes, and the mask's values.

    Raises:
        UserError: a file cannot be read, or the mask is not of the picture's size or has other values; it is named.
    """
    mask = read_mask(pair, reading, count)
    return read_picture(pair.image, picture_reading(reading)), _square(mask.classes, reading), mask.values


def picture_reading(reading: Reading) -> PictureReading:
    """How the picture itself is read, as in folders of pictures; UserError for channels that pictures do not have."""
    channels = reading.number_of_channels("pictures")
    if channels not in (1, 3):
        raise UserError(f"--data-arg channels={channels}: a picture has rgb or grey")
    return PictureReading(size=reading.size, fit=reading.fit, channels="rgb" if channels == 3 else "grey")


def read_mask(pair: Pair, reading: Reading, count: int) -> Mask:
    """A pair's mask; UserError, see :func:`read_pair`. Of the picture no more than the head is read."""
    from PIL import ImageOps

    if pair.mask.suffix.lower() in JPEG:
        raise UserError(f"{pair.mask}: a mask in JPEG, which changes values (0 may become 1): store masks as PNG")
    try:
        with open_picture(pair.mask) as opened:
            values = _plain_values(ImageOps.exif_transpose(opened))
            black = _black_elsewhere(opened, values) if reading.values is None else None
    except UserError:
        raise
    except Exception as error:  # Pillow raises errors of many kinds on damaged files.
        raise _unreadable(pair.mask, error) from None
    try:
        width, height = picture_size(pair.image)
    except Exception as error:  # likewise
        raise _unreadable(pair.image, error) from None
    if values.shape != (height, width):
        raise UserError(
            f"{pair.mask}: is {values.shape[1]}×{values.shape[0]} pixels, its image {pair.image} {width}×{height}: "
            f"both must be of one size{_as_stored(pair, values.shape)}"
        )
    if black is not None:
        raise UserError(
            f"{pair.mask}: its palette has black as number {black}, and number 0, which is the background, as another "
            "colour: was it saved with colours numbered anew? Store it as greys, or say what its numbers mean with "
            "--data-arg values"
        )
    try:
        present = values_in(values)
        return Mask(to_classes(values, present, count, reading.values), present)
    except ValueError as error:
        raise UserError(f"{pair.mask}: {error}") from None


def _unreadable(file: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):  # as a datalist may name it
        hint = ": write / in paths, not \\" if "\\" in file.name else ""
        return UserError(f"{file}: there is no such file{hint}")
    return UserError(f"{file}: cannot be read ({first_line(error)}); repair it")


def only_the_picture_turned(pair: Pair) -> str:
    """In words, where EXIF data turn a picture and not its mask; else empty."""
    if not exif_turn(pair.image) or exif_turn(pair.mask):
        return ""
    return (
        f"{pair.image}: EXIF data turn it, and not its mask: the mask is taken as drawn on the upright picture; if it "
        "was drawn on the stored one, store the picture upright, without EXIF data, and turn the mask alike"
    )


def _as_stored(pair: Pair, shape: tuple[int, ...]) -> str:
    """Why a mask of the other size may be one of the picture as it is stored."""
    if exif_turn(pair.image) < 5 or shape != picture_size(pair.image):
        return ""
    return " (EXIF data turn the image; the mask fits the stored one: turn it alike)"


def _plain_values(image: Image) -> np.ndarray:
    """(H, W): what a file's pixels are, whatever their colour: numbers of a palette too.

    What is not to be seen is 0, as in a structure drawn on a clear layer, unless nothing is to be seen.
    """
    if image.mode == "1":
        return np.asarray(image).astype(np.uint8)
    seen = np.asarray(image.getchannel("A")) > 0 if image.mode in ("LA", "RGBA") else None
    if image.mode in ("LA", "PA"):
        image = image.getchannel(0)
    values = np.asarray(image)
    if seen is not None and seen.any():
        values = values * (seen if values.ndim == 2 else seen[..., None])
    if values.ndim == 3:
        values = values[..., :3]
        if not (values == values[..., :1]).all():
            raise ValueError("it is in colours; one number a pixel, the class, is needed: are image and mask swapped?")
        values = values[..., 0]
    return values


def _black_elsewhere(image: Image, values: np.ndarray) -> int | None:
    """The number that stands for black in a picture with a palette of which 0 is a colour to be seen; else None.

    Programs that save a black and white mask with a palette number its colours as they like.
    """
    if image.mode not in ("P", "PA") or not (colours := image.getpalette()):
        return None
    seen = np.array(colours).reshape(-1, 3).max(1) > _BLACK
    clear = image.info.get("transparency")
    if not seen[0] or clear == 0 or (isinstance(clear, bytes) and clear[:1] == b"\0"):
        return None
    return next((number for number in values_in(values) if number < len(seen) and not seen[number]), None)


def _square(classes: np.ndarray, reading: Reading) -> np.ndarray:
    """By the nearest pixel."""
    from PIL import Image

    return np.asarray(squared(Image.fromarray(classes), reading.size, reading.fit, Image.Resampling.NEAREST)).copy()


def mode_of(file: Path) -> str:
    """``grey`` or ``colour``, by a picture's head."""
    with open_picture(file) as image:
        return "grey" if image.mode in ("1", "L", "LA") or image.mode.startswith(("I", "F")) else "colour"
