"""From a CT volume on disk to the slices a model sees: the numbers that say how, and the transforms they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from medpfl.data.arguments import Lengths, lower_first

if TYPE_CHECKING:
    from monai.transforms import Compose

AIR = -1024.0
"""HU of what lies outside a scanner's circle; nothing is less."""


class Preprocessing(BaseModel):
    """How volumes become slices; travels with a job.

    Attributes:
        size: edge length of a slice, pixels.
        slices: axial slices of a scan, at most.
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

    @field_validator("window")
    @classmethod
    def _lower_first(cls, window: tuple[float, float]) -> tuple[float, float]:
        return lower_first(window, "two HU values, the lower first, e.g. -1350, 150 for the lung")


def steps(preprocessing: Preprocessing) -> list[dict[str, Any]]:
    """The transforms of :func:`pipeline` in MONAI's bundle notation, in their order; nothing is imported."""
    monai, ours = "monai.transforms", "medpfl.data.kinds.scans.transforms"
    low, high = preprocessing.window
    spacing, size = list(preprocessing.spacing), preprocessing.size
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
        {"_target_": f"{ours}.AxialSlicesd", "keys": "image", "count": preprocessing.slices},
        {
            "_target_": f"{monai}.ScaleIntensityRanged",
            "keys": "image",
            "a_min": low,
            "a_max": high,
            "b_min": -1.0,
            "b_max": 1.0,
            "clip": True,
        },
        {"_target_": f"{monai}.Resized", "keys": "image", "spatial_size": [size, size, -1], "mode": "area"},
        {"_target_": f"{ours}.ScreenSlicesd", "keys": "image"},
        {"_target_": f"{monai}.SelectItemsd", "keys": "image"},
    ]


def pipeline(preprocessing: Preprocessing) -> Compose:
    """MONAI transforms from ``{"image": files, "kind": "dicom" | "nifti"}`` to ``{"image": slices}``.

    ``files`` are a series' DICOM files in any order, or one NIfTI file. ``slices`` is (k, 1, size, size) float16 in
    [-1, 1], k at most ``preprocessing.slices``, the most inferior first, each as it is shown on a screen: anterior
    above, the patient's right on the left.
    """
    from monai.transforms import Compose
    from monai.utils import instantiate

    return Compose(
        [
            instantiate(s["_target_"], "default", **{k: v for k, v in s.items() if k != "_target_"})
            for s in steps(preprocessing)
        ]
    )
