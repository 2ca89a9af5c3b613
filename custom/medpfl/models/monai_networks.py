"""What MONAI's networks are built with: what the data say, what they ask for besides, and what they never get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from medpfl.core.errors import UserError
from medpfl.models.shapes import require_multiples


def defaults(network: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a class requires and nobody's data know: four levels, each but the first half as large.

    Args:
        network: the class.
        given: the user's, by which the number of levels goes.
    """
    if network in ("UNet", "AttentionUnet"):
        channels = given.get("channels", (16, 32, 64, 128))
        return {"channels": channels, "strides": (2,) * (_length(channels) - 1)}
    if network == "DynUNet":
        strides = given.get("strides", (1, 2, 2, 2))
        return {"kernel_size": (3,) * _length(strides), "strides": strides, "upsample_kernel_size": _behind(strides)}
    return {"backbone": "efficientnet-b0"} if network == "FlexibleUNet" else {}


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 1


def _behind(strides: Any) -> Sequence[Any]:
    return strides[1:] if isinstance(strides, list | tuple) else ()


def from_data(in_channels: int | None, num_classes: int | None, size: tuple[int, ...] | None) -> dict[str, Any]:
    """Arguments by all the names that MONAI's networks have for what the data say; what they do not say is left out."""
    side = size[0] if size and len(set(size)) == 1 else size
    found = {
        "spatial_dims": size and len(size),
        **dict.fromkeys(("in_channels", "n_input_channels"), in_channels),
        **dict.fromkeys(("num_classes", "out_channels", "classes"), num_classes),
        **dict.fromkeys(("img_size", "image_size"), side),
        "in_shape": (in_channels, *size) if in_channels and size else None,
    }
    return {
        **{name: value for name, value in found.items() if value is not None},
        # Several of MONAI's networks download weights unless told not to, and its ViT is by default a backbone
        # without a head, or with one that ends in a Tanh, which no cross-entropy wants.
        "pretrained": False,
        "classification": True,
        "post_activation": None,
    }


def require_one_output(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuses deep supervision.

    Its further outputs come in one stack with the first, or in no order that all networks share, and no loss here is
    taken of them.

    Raises:
        UserError: the argument.
    """
    for argument, plain in (("deep_supervision", False), ("dsdepth", 1)):
        if arguments.get(argument, plain) not in (plain, None):
            raise UserError(
                f"{name}: with {argument} it gives several outputs, and a run trains the one that it predicts with: "
                f"leave the model argument {argument} out"
            )


def require_whole_levels(name: str, network: str, arguments: Mapping[str, Any], size: Sequence[int] | None) -> None:
    """Refuses images that a network would halve to a part of a pixel, where its arguments say how often it does.

    Raises:
        UserError: the size, and the nearest that fits.
    """
    if not size:
        return
    if network in ("UNet", "AttentionUnet", "DynUNet"):
        multiples = _halvings(arguments["strides"], len(size))
    elif network in ("SegResNet", "SegResNetVAE"):
        multiples = (2 ** (_length(arguments.get("blocks_down", (1, 2, 2, 4))) - 1),) * len(size)
    elif network in ("UNETR", "VNet"):
        multiples = (16,) * len(size)
    else:
        return
    if multiples:
        require_multiples(size, multiples, name, "other model arguments")


def _halvings(strides: Any, dims: int) -> tuple[int, ...]:
    """The product of all levels' strides, by axis; empty where they are none, which the network itself will say."""
    levels = [(s,) * dims if isinstance(s, int) else s for s in strides] if isinstance(strides, list | tuple) else []
    if not all(_length(s) == dims and all(isinstance(n, int) and n > 0 for n in s) for s in levels):
        return ()
    return tuple(prod(axis) for axis in zip(*levels, strict=True))
