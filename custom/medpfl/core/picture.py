"""Images as one PNG, for pages and results that must stand alone."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # pages without images of a network need no torch
    from torch import Tensor


def png_grid(images: Tensor, columns: int = 8) -> str:
    """Images side by side, row by row, as a ``data:`` URI.

    Args:
        images: (n, C, H, W) in [-1, 1], with one channel (grey) or three (red, green, blue); values beyond are clipped.
        columns: images in a row.
    """
    pixels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().numpy().astype(np.uint8)
    n, channels, height, width = pixels.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 255, dtype=np.uint8)
    for number, image in enumerate(pixels):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        sheet[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    return png(sheet[..., 0] if channels == 1 else sheet)


def png(pixels: np.ndarray) -> str:
    """Pixels (H, W) or (H, W, 3) uint8 as a ``data:`` URI."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
