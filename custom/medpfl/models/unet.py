"""Networks for segmentation that train on a CPU: sizes of MONAI's UNet and SegResNet, 2-D or 3-D, with batch norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from medpfl.models.shapes import each_side, require_multiples

if TYPE_CHECKING:
    from monai.networks.nets import SegResNet, UNet


def unet(
    *,
    in_channels: int = 1,
    num_classes: int,
    size: int | Sequence[int] = 64,
    channels: Sequence[int] = (16, 32, 64, 128),
    num_res_units: int = 2,
    norm: str = "batch",
    dropout: float = 0.0,
) -> UNet:
    """MONAI's UNet with residual units; each level but the last halves the images.

    Ronneberger, Fischer, Brox, U-Net, MICCAI 2015; residual units: Kerfoot et al., Left-ventricle quantification using
    residual U-Net, STACOM 2018. Batch norm in the place of MONAI's instance norm, for methods that rest on it.

    Args:
        in_channels: channels of the images.
        num_classes: output channels, background included.
        size: (H, W) or (D, H, W) of the images, one number for a square; multiples of 2 to the power of the levels but
            one. The weights depend on the number of dimensions alone.
        channels: by level.
        num_res_units: convolutions of a level's unit; 0 for one convolution without a short cut.
        norm: batch, instance or another of MONAI's.
        dropout: share of values dropped.

    Shape:
        (B, in_channels, *size) to logits (B, num_classes, *size).

    Raises:
        UserError: the images' sides are no such multiples.
    """
    from monai.networks.nets import UNet  # Importing MONAI takes seconds, so only who asks for it waits.

    sides, strides = each_side(size), (2,) * (len(channels) - 1)
    require_multiples(sides, (2 ** len(strides),) * len(sides), "unet", "fewer channels (--model-arg channels=...)")
    return UNet(
        spatial_dims=len(sides),
        in_channels=in_channels,
        out_channels=num_classes,
        channels=channels,
        strides=strides,
        num_res_units=num_res_units,
        norm=norm,
        dropout=dropout,
    )


def segresnet_small(
    *,
    in_channels: int = 1,
    num_classes: int,
    size: int | Sequence[int] = 64,
    init_filters: int = 8,
    blocks_down: Sequence[int] = (1, 2, 2),
    blocks_up: Sequence[int] = (1, 1),
    norm: str = "batch",
) -> SegResNet:
    """MONAI's SegResNet in three levels, with batch norm in the place of its group norm.

    Myronenko, 3D MRI brain tumor segmentation using autoencoder regularization, BrainLes 2018; without the autoencoder.

    Args:
        in_channels: as in :func:`unet`, like the two that follow.
        num_classes: see there.
        size: see there.
        init_filters: channels of the first level; each further one has twice as many.
        blocks_down: residual blocks by level of the encoder.
        blocks_up: residual blocks by level of the decoder; one level less.
        norm: batch, instance or another of MONAI's.

    Shape:
        (B, in_channels, *size) to logits (B, num_classes, *size).

    Raises:
        UserError: the images' sides are no multiples of 2 to the power of the levels but one.
    """
    from monai.networks.nets import SegResNet

    sides = each_side(size)
    multiples = (2 ** (len(blocks_down) - 1),) * len(sides)
    require_multiples(sides, multiples, "segresnet-small", "fewer levels (--model-arg blocks_down=...)")
    return SegResNet(
        spatial_dims=len(sides),
        init_filters=init_filters,
        in_channels=in_channels,
        out_channels=num_classes,
        blocks_down=tuple(blocks_down),
        blocks_up=tuple(blocks_up),
        norm=norm,
    )
