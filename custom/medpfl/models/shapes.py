"""Image sizes through convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from medpfl.core.errors import UserError


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width; one number stands for a square.

    Raises:
        UserError: the size does not have two dimensions.
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2:
        raise UserError(f"this network takes 2-D images, got the image size {list(sides)}")
    return sides


def after(length: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Length of one side behind a convolution or a pooling."""
    return (length + 2 * padding - kernel) // stride + 1


def require(size: tuple[int, int], least: tuple[int, int], network: str) -> None:
    """Raises UserError if an image is smaller than the least height and width a network can take."""
    if size[0] < least[0] or size[1] < least[1]:
        raise UserError(
            f"{network} takes images of at least {least[0]}x{least[1]} pixels, got {size[0]}x{size[1]}: "
            "use larger images or another model"
        )
