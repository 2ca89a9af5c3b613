"""A picture file as the sets of images have them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection

from medpfl.core.errors import UserError, first_line, printably
from medpfl.data.each_value import EachValued
from medpfl.data.kinds.folders.picture_file import ONE_COLOUR, Reading, in_square, odd, of_one_colour, upright
from medpfl.data.picture import open_picture

logger = logging.getLogger(__name__)
logger.addFilter(printably)


class LoadPictured(EachValued):
    """A picture file to (C, H, W) float32 from 0 to 255: what Pillow reads, or ``.npy`` with (H, W) or (H, W, 3) uint8.

    As :func:`medpfl.data.kinds.folders.picture_file.read_picture` has it: upright, and transparent pixels on black.

    Args:
        keys: what to load.
        channels: 1 makes grey of it, 3 RGB.
        size: edge length that the picture must have: the training images came in that size, and how they were brought
            to it is not known.

    Raises:
        UserError: the file cannot be read, or its picture has another size or depth.
    """

    def __init__(self, keys: KeysCollection, channels: int, size: int):
        super().__init__(keys)
        self.channels, self.size = channels, size

    def _changed(self, value: str | Path) -> torch.Tensor:
        from PIL import Image

        file, wanted = Path(value), "RGB" if self.channels == 3 else "L"
        try:
            array = Image.fromarray(np.load(file, allow_pickle=False)) if file.suffix.lower() == ".npy" else None
            mode = _mode(file) if array is None else array.mode
        except Exception as error:  # Pillow and numpy raise errors of many kinds on files that are no pictures.
            raise UserError(f"{file}: cannot be read as a picture: {first_line(error)}") from None
        if mode.startswith(("I", "F")):
            raise UserError(f"{file}: has more than 8 bits a value; the model was trained on 8")
        pixels = np.asarray(upright(file, wanted) if array is None else array.convert(wanted))
        if pixels.shape[:2] != (self.size, self.size):
            height, width = pixels.shape[:2]
            raise UserError(
                f"{file}: is {width}x{height} pixels; the model was trained on {self.size}x{self.size}: bring it to "
                "that size as the training images were"
            )
        chw = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if of_one_colour(chw):
            logger.warning("%s: %s", file, ONE_COLOUR)
        return torch.from_numpy(chw.astype(np.float32))


def _mode(file: Path) -> str:
    with open_picture(file) as opened:
        return opened.mode


class ReadPictured(EachValued):
    """A picture file of any size to (C, size, size) float32 from 0 to 255, as folders of pictures are read.

    What is odd with one that training would take all the same, the log says.

    Args:
        keys: what to read.
        reading: of :class:`medpfl.data.kinds.folders.picture_file.Reading`.
    """

    def __init__(self, keys: KeysCollection, **reading: Any):
        super().__init__(keys)
        self.reading = Reading(**reading)

    def _changed(self, value: str | Path) -> torch.Tensor:
        file = Path(value)
        image = upright(file, self.reading.mode)
        for words in odd(file, image):
            logger.warning("%s: %s", file, words)
        return torch.from_numpy(in_square(image, self.reading).astype(np.float32))
