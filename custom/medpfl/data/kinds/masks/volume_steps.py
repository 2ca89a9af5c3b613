"""From a NIfTI volume and its mask to what a network sees, in MONAI's transforms: the same steps for a new scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from medpfl.data.inputs import composed
from medpfl.data.kinds.masks.reading import Reading

if TYPE_CHECKING:
    from monai.transforms import Compose

MASK = "mask"


def steps(reading: Reading, masked: bool) -> list[dict[str, Any]]:
    """The transforms in MONAI's bundle notation, in their order; nothing is imported.

    From ``{"image": file}``, and ``"mask"``, (1, X, Y, Z) with its affine, where ``masked``, to (C, D, H, W): slices
    from the feet up, rows from front to back, columns from the patient's right to left; with ``dims=2``
    (k, C, size, size) of k such slices. The image is float16, in which it is kept, or float32 where values stay as they
    are.
    """
    monai, ours = "monai.transforms", "medpfl.data.kinds.masks.transforms"
    keys = ["image", MASK] if masked else ["image"]
    spacing = list(reading.spacing[::-1])
    made: list[dict[str, Any]] = [
        {
            "_target_": f"{ours}.LoadVolumed",
            "keys": "image",
            "channels": reading.number_of_channels("volumes"),
            "hounsfield": reading.windowed_hu,
        },
        {"_target_": f"{monai}.Orientationd", "keys": keys, "axcodes": "LPS", "labels": None},
    ]
    if masked:
        made.insert(1, {"_target_": f"{ours}.PlacedAsd", "keys": MASK, "image": "image"})
    if any(spacing):
        made += [
            {"_target_": "medpfl.data.kinds.scans.transforms.AntiAliasd", "keys": "image", "spacing": spacing},
            {
                "_target_": f"{monai}.Spacingd",
                "keys": keys,
                "pixdim": spacing,
                "mode": ["bilinear", "nearest"][: len(keys)],
                "padding_mode": "border",
                "dtype": "float32",
            },
        ]
    made += [
        {
            "_target_": f"{ours}.NormaliseVolumed",
            "keys": "image",
            "how": reading.normalise,
            "window": list(reading.window),
        },
        {"_target_": f"{monai}.Transposed", "keys": keys, "indices": [0, 3, 2, 1]},
    ]
    if reading.dims == 2:
        square = {"_target_": f"{ours}.SquareSlicesd", "size": reading.size, "fit": reading.fit}
        made += [{**square, "keys": key, "mask": key == MASK} for key in keys]
    if reading.normalise != "none":
        made.append({"_target_": f"{monai}.CastToTyped", "keys": "image", "dtype": "float16"})
    return made


def pipeline(reading: Reading) -> Compose:
    """The transforms of :func:`steps` for an image and its mask."""
    return composed(steps(reading, masked=True))
