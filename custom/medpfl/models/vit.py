"""Vision transformers: sizes of MONAI's ViT, for usual images and for small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import gcd
from typing import TYPE_CHECKING

from medpfl.core.errors import UserError
from medpfl.models.shapes import by, each_side, pair

if TYPE_CHECKING:
    from monai.networks.nets import ViT

_MOST_PATCHES = 8


def vit_small(
    *,
    in_channels: int = 3,
    num_classes: int,
    size: int | Sequence[int] = 224,
    patch_size: int | Sequence[int] = 16,
    hidden_size: int = 384,
    num_layers: int = 12,
    num_heads: int = 6,
    mlp_dim: int = 1536,
) -> ViT:
    """MONAI's ViT in the size ViT-S/16 (22 million parameters), with random weights.

    Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; the size is DeiT-S of Touvron et al., Training
    data-efficient image transformers, ICML 2021. Queries, keys and values have a bias, as in the papers; the position
    embedding is learned and, as always in MONAI, has no entry for the class token.

    Args:
        in_channels: channels of the images.
        num_classes: classes.
        size: height and width of the images, one number for a square; multiples of the patch size.
        patch_size: height and width of the patches, one number for a square.
        hidden_size: width of the tokens; a multiple of ``num_heads``.
        num_layers: transformer blocks.
        num_heads: attention heads of a block.
        mlp_dim: hidden units of a block's two linear layers.

    Shape:
        (B, in_channels, size, size) to a tuple: logits (B, num_classes) and the tokens after each block.

    Raises:
        UserError: the images are not 2-D, or do not consist of whole patches.
    """
    sides = pair(size)
    patch = _pair_of_patch(patch_size)
    _require_whole_patches("vit-small", sides, patch)
    return _vit(in_channels, num_classes, sides, patch, hidden_size, num_layers, num_heads, mlp_dim)


def vit_tiny(
    *,
    in_channels: int = 1,
    num_classes: int,
    size: int | Sequence[int] = 28,
    patch_size: int | Sequence[int] | None = None,
    hidden_size: int = 96,
    num_layers: int = 4,
    num_heads: int = 6,
    mlp_dim: int = 192,
) -> ViT:
    """MONAI's ViT in a size that a CPU trains, for images of some 28 to 64 pixels.

    Args:
        in_channels: as in :func:`vit_small`, like all but the patch size.
        num_classes: see there.
        size: see there.
        patch_size: height and width of the patches; None for each side's smallest divisor that gives at most 8 patches
            (4 for 28 and 32 pixels, 8 for 64).
        hidden_size: see there.
        num_layers: see there.
        num_heads: see there.
        mlp_dim: see there.

    Shape:
        (B, in_channels, size, size) to a tuple: logits (B, num_classes) and the tokens after each block.

    Raises:
        UserError: the images are not 2-D, do not consist of whole patches, or have a side that no patch size divides.
    """
    sides = pair(size)
    if patch_size is not None:
        patch = _pair_of_patch(patch_size)
        _require_whole_patches("vit-tiny", sides, patch)
    elif all(_is_divisible(side) for side in sides):
        patch = _smallest_patch(sides[0]), _smallest_patch(sides[1])
    else:
        raise UserError(
            f"vit-tiny finds no patch that divides images of {by(sides)} pixels into 2 to {_MOST_PATCHES} a side: "
            f"use images of {_nearest(sides, (_is_divisible, _is_divisible))} pixels"
        )
    return _vit(in_channels, num_classes, sides, patch, hidden_size, num_layers, num_heads, mlp_dim)


def _vit(
    in_channels: int,
    num_classes: int,
    sides: tuple[int, int],
    patch: tuple[int, int],
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    mlp_dim: int,
) -> ViT:
    from monai.networks.nets import ViT  # Importing MONAI takes seconds, so only who asks for it waits.

    return ViT(
        in_channels=in_channels,
        img_size=sides,
        patch_size=patch,
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        pos_embed_type="learnable",
        classification=True,
        num_classes=num_classes,
        spatial_dims=2,
        post_activation=None,  # By default a Tanh, which no cross-entropy wants.
        qkv_bias=True,
    )


def _pair_of_patch(patch_size: int | Sequence[int]) -> tuple[int, int]:
    patch = each_side(patch_size)
    if len(patch) != 2 or min(patch) < 1:
        raise UserError(f"patch_size is one positive number or two, got {patch_size!r}")
    return patch


def _require_whole_patches(name: str, sides: tuple[int, int], patch: tuple[int, int]) -> None:
    if not any(side % step for side, step in zip(sides, patch, strict=True)):
        return
    whole = tuple(lambda side, step=step: side % step == 0 for step in patch)
    common = gcd(*sides)
    divisors = [d for d in range(2, min(sides) // 2 + 1) if common % d == 0]
    other = f", or --model-arg patch_size={min(divisors, key=lambda d: abs(d - patch[0]))}" if divisors else ""
    raise UserError(
        f"{name} divides images into patches of {by(patch)} pixels, which do not divide {by(sides)}: "
        f"use images of {_nearest(sides, whole)} pixels{other}"
    )


def _smallest_patch(side: int) -> int:
    return next(patch for patch in count(-(-side // _MOST_PATCHES)) if side % patch == 0)


def _is_divisible(side: int) -> bool:
    """Whether the patch is smaller than the image: one patch alone has no other to attend to."""
    return _smallest_patch(side) < side


def _nearest(sides: tuple[int, int], fits: Sequence[Callable[[int], bool]]) -> str:
    """The nearest sizes below and above, side by side, of which each fits."""
    below = tuple(next((s for s in range(side, 0, -1) if fit(s)), 0) for side, fit in zip(sides, fits, strict=True))
    above = tuple(next(s for s in count(side) if fit(s)) for side, fit in zip(sides, fits, strict=True))
    return " or ".join(by(size) for size in (below, above) if all(size))
