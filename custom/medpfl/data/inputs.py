"""What a model takes, said so that it can be used later without the run: a file's way to the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from monai.transforms import Compose


@dataclass(frozen=True)
class Inputs:
    """How a file becomes the network's input; plain values, made without reading an image.

    Attributes:
        kind: ``scan``, a CT volume that becomes slices, or one volume of a fixed size; ``picture``, a 2-D
            image; ``masked picture`` and ``masked volume``, of which every pixel or voxel has a class; ``series``, one
            window of several channels.
        classes: names in the order of the labels.
        channels: of a slice or picture.
        size: its edge length in pixels as the network sees it; of a volume with a mask its patch, (D, H, W), or its
            slices' (H, W); of a scan that is taken whole its (D, H, W); of a window its samples, (T,).
        slices: of a bag where a prediction takes all slices of a scan together; None where each slice has its own.
        steps: dictionary transforms in MONAI's bundle notation, from ``{"image": file or files, "kind": ...}`` to
            ``{"image": tensor}``, float32: (k, C, H, W) of k slices, (C, H, W) of a picture, (C, D, H, W) of a volume,
            (C, T) of a window.
        settings: what the user chose among these steps.
        arrays: a picture may be an ``.npy`` file too; the data may have numbers for names of classes.
    """

    kind: Literal["scan", "picture", "masked picture", "masked volume", "series"]
    classes: tuple[str, ...]
    channels: int
    size: int | tuple[int, ...]
    slices: int | None
    steps: list[dict[str, Any]]
    settings: dict[str, Any]
    arrays: bool = False

    @property
    def masked(self) -> bool:
        """Whether every pixel or voxel has a class."""
        return self.kind.startswith("masked")

    @property
    def named(self) -> bool:
        """Whether the data name their classes: an npz file of one's own only numbers them."""
        return not (self.arrays and self.classes == tuple(map(str, range(len(self.classes)))))


def composed(steps: list[dict[str, Any]]) -> Compose:
    """The transforms that stand in MONAI's bundle notation, none of them an expression."""
    from monai.transforms import Compose
    from monai.utils import instantiate

    return Compose(
        [instantiate(s["_target_"], "default", **{k: v for k, v in s.items() if k != "_target_"}) for s in steps]
    )


def to_unit_range() -> dict[str, Any]:
    """The step that brings pixels from 0 to 255 to [-1, 1], as :func:`medpfl.core.site_data.scale` does in training."""
    scaling = {"_target_": "monai.transforms.ScaleIntensityRanged", "keys": "image"}
    return {**scaling, "a_min": 0, "a_max": 255, "b_min": -1.0, "b_max": 1.0}


def stored_images(classes: tuple[str, ...], channels: int, size: int, edge: int) -> Inputs:
    """Of a data set in one file: a picture of the set's kind, padded with black from ``size`` to ``edge`` pixels."""
    steps: list[dict[str, Any]] = [
        {"_target_": "medpfl.bundle.pictures.LoadPictured", "keys": "image", "channels": channels, "size": size}
    ]
    if edge != size:
        target = {"_target_": "monai.transforms.SpatialPadd", "keys": "image", "spatial_size": [edge, edge]}
        steps.append({**target, "value": 0})
    steps.append(to_unit_range())
    settings = {"size": size, "pad": edge, "fit": None}
    return Inputs("picture", classes, channels, edge, None, steps, settings, arrays=True)
