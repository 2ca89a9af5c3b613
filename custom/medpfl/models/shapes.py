"""Image sizes through convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from medpfl.core.errors import UserError


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width; one number stands for a square.

    Raises:
        UserError: the size does not have two dimensions.
    """
    sides = each_side(size)
    if len(sides) != 2:
        other = "time series choose another, e.g. --model fcn-1d"
        if len(sides) > 2:
            other = "volumes choose another, e.g. --model monai:DenseNet121"
        raise UserError(f"this network takes 2-D images, got the image size {list(sides)}: for {other}")
    return sides


def each_side(size: int | Sequence[int]) -> tuple[int, ...]:
    """(T,), (H, W) or (D, H, W); one number stands for a square."""
    return (size, size) if isinstance(size, int) else tuple(size)


def require_multiples(sides: Sequence[int], multiples: Sequence[int], network: str, otherwise: str) -> None:
    """Raises UserError, with the nearest sizes that do, if a side is no multiple of its number.

    Args:
        sides: of the images.
        multiples: one for each side.
        network: its name.
        otherwise: what else would help.
    """
    if not any(side % multiple for side, multiple in zip(sides, multiples, strict=True)):
        return
    below = [side // multiple * multiple for side, multiple in zip(sides, multiples, strict=True)]
    above = [-(-side // multiple) * multiple for side, multiple in zip(sides, multiples, strict=True)]
    nearest = " or ".join(by(size) for size in (below, above) if all(size))
    raise UserError(
        f"{network} takes images whose sides are multiples of {by(multiples)}, got {by(sides)}: use images of "
        f"{nearest} pixels, or {otherwise}"
    )


def by(sides: Sequence[int]) -> str:
    """28x28."""
    return "x".join(map(str, sides))


def after(length: int, kernel: int) -> int:
    """Length of one side behind a convolution without padding."""
    return length - kernel + 1


def require(size: tuple[int, int], least: tuple[int, int], network: str) -> None:
    """Raises UserError if an image is smaller than the least height and width a network can take."""
    if size[0] < least[0] or size[1] < least[1]:
        raise UserError(
            f"{network} takes images of at least {least[0]}x{least[1]} pixels, got {size[0]}x{size[1]}: "
            "use larger images or another model"
        )
