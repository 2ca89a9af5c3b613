"""Many images in one tensor, read a few at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from medpfl.core import scratch
from medpfl.core.errors import UserError

_AT_ONCE = 64
"""Images that are read at once."""


def gathered(count: int, shape: tuple[int, int, int], read: Callable[[slice], Tensor]) -> Tensor:
    """All images that ``read`` gives for rows ``first:last``, read a few at a time; a large set lies in a file.

    Returns:
        (count, *shape) float32; see :func:`medpfl.core.scratch.allocate`.

    Raises:
        UserError: the set needs a temporary file and there is no space.
    """
    images = room(count, shape)
    for first in range(0, count, _AT_ONCE):
        rows = slice(first, min(first + _AT_ONCE, count))
        images[rows] = read(rows)
    return images


def room(count: int, shape: tuple[int, int, int]) -> Tensor:
    """(count, *shape) float32 of any values; UserError if it needs a temporary file and there is no space."""
    try:
        return scratch.allocate((count, *shape), torch.float32)
    except OSError as error:
        raise UserError(f"{count} images: {error}") from None
