"""From a CT volume on disk to what a model sees, slices or a volume: the numbers that say how, and the transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from medpfl.data.arguments import Lengths, lower_first

if TYPE_CHECKING:
    from monai.transforms import Compose

AIR = -1024.0
"""HU of what lies outside a scanner's circle; nothing is less."""
MOST_VOXELS = 2**27
"""Of a volume that a network takes."""


class Preprocessing(BaseModel):
    """How volumes become slices; travels with a job.

    Attributes:
        size: edge length of a slice, pixels.
        slices: axial slices of a scan, at most; of no meaning with ``depth``.
        depth: a scan is one volume of so many slices, all of it, for 3-D networks; 0 for slices.
        window: HU that become -1 and 1; beyond it values are clipped. By default the lung window (centre -600, width
            1500).
        spacing: voxel edge lengths (right, anterior, superior) in mm that volumes are resampled to; 0 keeps an axis.
        lung_crop: cut out the lungs' bounding box; a volume in which none are found stays whole.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(default=64, ge=8, le=1024)
    slices: int = Field(default=16, ge=1, le=1024)
    window: tuple[float, float] = (-1350.0, 150.0)
    spacing: Lengths = (0.0, 0.0, 5.0)
    lung_crop: bool = True
    depth: int = Field(default=0, ge=0, le=512)

    @property
    def shape(self) -> int | tuple[int, int, int]:
        """What the network takes: the edge of a slice, or a volume's (D, H, W)."""
        return (self.depth, self.size, self.size) if self.depth else self.size

    @field_validator("depth")
    @classmethod
    def _of_a_size_that_trains(cls, depth: int, info: ValidationInfo) -> int:
        size = info.data.get("size", 0)
        if depth * size**2 > MOST_VOXELS:
            raise ValueError(f"{depth} slices of {size}x{size} pixels are more than {MOST_VOXELS} voxels: take less")
        return depth

    @field_validator("window")
    @classmethod
    def _lower_first(cls, window: tuple[float, float]) -> tuple[float, float]:
        return lower_first(window, "two HU values, the lower first, e.g. -1350, 150 for the lung")


def steps(preprocessing: Preprocessing) -> list[dict[str, Any]]:
    """The transforms of :func:`pipeline` in MONAI's bundle notation, in their order; nothing is imported."""
    monai, ours = "monai.transforms", "medpfl.data.kinds.scans.transforms"
    low, high = preprocessing.window
    spacing, size, depth = list(preprocessing.spacing), preprocessing.size, preprocessing.depth
    slices = {"_target_": f"{ours}.AxialSlicesd", "keys": "image", "count": preprocessing.slices}
    return [
        {"_target_": f"{ours}.LoadScand", "keys": "image"},
        {"_target_": f"{monai}.EnsureChannelFirstd", "keys": "image"},
        {"_target_": f"{ours}.RaiseToAird", "keys": "image"},
        {"_target_": f"{monai}.Orientationd", "keys": "image", "axcodes": "RAS", "labels": None},
        {"_target_": f"{ours}.AntiAliasd", "keys": "image", "spacing": spacing},
        {
            "_target_": f"{monai}.Spacingd",
            "keys": "image",
            "pixdim": spacing,
            "mode": "bilinear",
            "dtype": "float32",
        },
        {"_target_": f"{ours}.LungBoxd", "keys": "image", "crop": preprocessing.lung_crop},
        *([] if depth else [slices]),
        {
            "_target_": f"{monai}.ScaleIntensityRanged",
            "keys": "image",
            "a_min": low,
            "a_max": high,
            "b_min": -1.0,
            "b_max": 1.0,
            "clip": True,
        },
        {"_target_": f"{monai}.Resized", "keys": "image", "spatial_size": [size, size, depth or -1], "mode": "area"},
        {"_target_": f"{ours}.ScreenSlicesd", "keys": "image"},
        {"_target_": f"{monai}.SelectItemsd", "keys": "image"},
    ]


def pipeline(preprocessing: Preprocessing) -> Compose:
    """MONAI transforms from ``{"image": files, "kind": "dicom" | "nifti"}`` to ``{"image": slices}``.

    ``files`` are a series' DICOM files in any order, or one NIfTI file. ``slices`` is (k, 1, size, size) float16 in
    [-1, 1], k at most ``preprocessing.slices``, or ``preprocessing.depth`` where that is given; the most inferior
    first, each as it is shown on a screen: anterior above, the patient's right on the left.
    """
    from monai.transforms import Compose
    from monai.utils import instantiate

    return Compose(
        [
            instantiate(s["_target_"], "default", **{k: v for k, v in s.items() if k != "_target_"})
            for s in steps(preprocessing)
        ]
    )
