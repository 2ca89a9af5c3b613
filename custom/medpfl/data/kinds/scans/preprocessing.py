"""From a CT or MR volume on disk to what a model sees, slices or a volume: what says how, and the transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from medpfl.data.arguments import Lengths, lower_first
from medpfl.data.inputs import composed

if TYPE_CHECKING:
    from monai.transforms import Compose

Modality = Literal["CT", "MR"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
"""DICOM's names of those whose series are read as volumes."""
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
        normalise: ``window`` of CT, in HU; of MR, whose values have no unit, ``percentile`` (the 1st and the 99th
            become -1 and 1, beyond which values are clipped) or ``zscore`` (mean 0, deviation 1), both over what is not
            zero in the volume.
        window: HU that become -1 and 1; beyond it values are clipped. By default the lung window (centre -600, width
            1500). Of no meaning with MR.
        spacing: voxel edge lengths (right, anterior, superior) in mm that volumes are resampled to; 0 keeps an axis.
        lung_crop: cut out the lungs' bounding box; a volume in which none are found stays whole. By default of CT, and
            never of MR.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(default=64, ge=8, le=1024)
    slices: int = Field(default=16, ge=1, le=1024)
    normalise: Literal["window", "percentile", "zscore"] = "window"
    window: tuple[float, float] = (-1350.0, 150.0)
    spacing: Lengths = (0.0, 0.0, 5.0)
    lung_crop: bool = Field(default=None, validate_default=True)
    depth: int = Field(default=0, ge=0, le=512)

    @property
    def shape(self) -> int | tuple[int, int, int]:
        """What the network takes: the edge of a slice, or a volume's (D, H, W)."""
        return (self.depth, self.size, self.size) if self.depth else self.size

    @property
    def modality(self) -> Modality:
        """Of the volumes that these steps are for."""
        return "CT" if self.normalise == "window" else "MR"

    @field_validator("lung_crop", mode="before")
    @classmethod
    def _of_ct(cls, crop: Any, info: ValidationInfo) -> Any:
        ct = info.data.get("normalise", "window") == "window"
        if crop and not ct:
            raise ValueError(
                f"lungs are found by HU, which MR (normalise={info.data['normalise']}) has not: leave it out"
            )
        return ct if crop is None else crop

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
    spacing, size, depth = list(preprocessing.spacing), preprocessing.size, preprocessing.depth
    ct, (low, high) = preprocessing.modality == "CT", preprocessing.window
    slices = {"_target_": f"{ours}.AxialSlicesd", "keys": "image", "count": preprocessing.slices}
    scaled = {"_target_": f"{monai}.ScaleIntensityRanged", "keys": "image", "a_min": low, "a_max": high}
    normalised = {"_target_": "medpfl.data.kinds.masks.transforms.NormaliseVolumed", "keys": "image"}
    # What normalising makes of zero, and of less than the 1st percentile.
    behind = 0.0 if preprocessing.normalise == "zscore" else -1.0
    return [
        {"_target_": f"{ours}.LoadScand", "keys": "image", **({} if ct else {"padding": 0.0})},
        {"_target_": f"{monai}.EnsureChannelFirstd", "keys": "image"},
        {"_target_": f"{ours}.RaiseToAird" if ct else f"{ours}.FiniteVolumed", "keys": "image"},
        {"_target_": f"{monai}.Orientationd", "keys": "image", "axcodes": "RAS", "labels": None},
        {"_target_": f"{ours}.AntiAliasd", "keys": "image", "spacing": spacing},
        {
            "_target_": f"{monai}.Spacingd",
            "keys": "image",
            "pixdim": spacing,
            "mode": "bilinear",
            "dtype": "float32",
        },
        *([] if ct else [{**normalised, "how": preprocessing.normalise, "window": [low, high]}]),
        {
            "_target_": f"{ours}.LungBoxd",
            "keys": "image",
            "crop": preprocessing.lung_crop,
            **({} if ct else {"behind": behind}),
        },
        *([] if depth else [slices]),
        *([{**scaled, "b_min": -1.0, "b_max": 1.0, "clip": True}] if ct else []),
        {"_target_": f"{monai}.Resized", "keys": "image", "spatial_size": [size, size, depth or -1], "mode": "area"},
        {"_target_": f"{ours}.ScreenSlicesd", "keys": "image"},
        {"_target_": f"{monai}.SelectItemsd", "keys": "image"},
    ]


def pipeline(preprocessing: Preprocessing) -> Compose:
    """MONAI transforms from ``{"image": files, "kind": "dicom" | "nifti"}`` to ``{"image": slices}``.

    ``files`` are a series' DICOM files in any order, or one NIfTI file. ``slices`` is (k, 1, size, size) float16 in
    [-1, 1], or around 0 with ``zscore``; k at most ``preprocessing.slices``, or ``preprocessing.depth`` where that is
    given; the most inferior first, each as it is shown on a screen: anterior above, the patient's right on the left.
    """
    return composed(steps(preprocessing))
