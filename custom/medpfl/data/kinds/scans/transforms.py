"""MONAI dictionary transforms of ours, for a CT or MR volume (1, X, Y, Z) on its way to axial slices."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from monai.config import KeysCollection
from monai.data import MetaTensor, NibabelReader
from monai.transforms import MapTransform
from scipy.ndimage import correlate1d
from torch import Tensor

from medpfl.core.errors import UserError, first_line
from medpfl.data.each_value import EachValued
from medpfl.data.kinds.scans.dicom_reader import SeriesReader
from medpfl.data.kinds.scans.limits import resampled_shape, too_large
from medpfl.data.kinds.scans.lung import find_lungs, square
from medpfl.data.kinds.scans.nifti import require_whole
from medpfl.data.kinds.scans.preprocessing import AIR, Modality
from medpfl.data.kinds.scans.values import odd_values

Data = Mapping[Hashable, Any]
logger = logging.getLogger(__name__)


class LoadScand(MapTransform):
    """Files to a volume (X, Y, Z), CT in HU, with its affine: a DICOM series' files or a NIfTI file, as ``kind`` says.

    A NIfTI file may have further dimensions of length 1. One that is compressed is read to its end once more for its
    checksum, which nibabel does not look at.

    MONAI's ``LoadImaged`` is not used because it tries its other readers after the one it was given has failed, and
    they make something else of the same files: here a failure is one.

    Args:
        keys: what to load.
        padding: see :class:`~medpfl.data.kinds.scans.dicom_reader.SeriesReader`.

    Raises:
        UserError: a file cannot be read or decoded, by name.
    """

    def __init__(self, keys: KeysCollection, padding: float = AIR):
        super().__init__(keys)
        self.padding = padding

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        out = dict(data)
        for key in self.key_iterator(out):
            files = out[key]
            require_whole(Path(files[0]))
            reader = (
                SeriesReader(self.padding) if out["kind"] == "dicom" else NibabelReader(squeeze_non_spatial_dims=True)
            )
            try:
                values, meta = reader.get_data(reader.read(files))
            except UserError:
                raise
            except MemoryError:
                raise UserError(f"{files[0]}: the volume does not fit into this machine's memory") from None
            except Exception as error:  # nibabel, gzip and zlib raise errors of many kinds on damaged files.
                raise UserError(f"{files[0]}: cannot be read: {first_line(error)}") from None
            if values.ndim != 3:
                raise UserError(f"{files[0]}: has {values.ndim} dimensions; one volume, 3, is needed")
            out[key] = MetaTensor.ensure_torch_and_prune_meta(values.astype(np.float32, copy=False), meta)
        return out


class PlausibleValuesd(MapTransform):
    """Lets a volume (X, Y, Z) pass if training would take its values (:mod:`medpfl.data.kinds.scans.values`).

    What is odd with one that it would take all the same, the log says.

    Args:
        keys: what is looked at.
        modality: of the values.

    Raises:
        UserError: training would refuse them, and why.
    """

    def __init__(self, keys: KeysCollection, modality: Modality = "CT"):
        super().__init__(keys)
        self.modality: Modality = modality

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        for key in self.key_iterator(data):
            for finding in odd_values(np.asarray(data[key]), self.modality):
                words = f"{data.get('name', key)}: {finding.message}"
                if finding.level == "error":
                    raise UserError(words)
                logger.warning("%s", words)
        return dict(data)


class RaiseToAird(EachValued):
    """What is below air, no number or infinite becomes air: scanners and converters mark what they did not see so."""

    def _changed(self, value: Tensor) -> Tensor:
        return torch.nan_to_num(value, nan=AIR, posinf=AIR, neginf=AIR).clamp_(min=AIR)


class FiniteVolumed(EachValued):
    """What is no finite number becomes the least number of the volume."""

    def _changed(self, value: MetaTensor) -> MetaTensor:
        values = value.as_tensor()
        known = torch.isfinite(values)
        least = values[known].min() if known.any() else values.new_zeros(())  # its values are refused then
        return MetaTensor(torch.where(known, values, least), meta=value.meta)


class AntiAliasd(EachValued):
    """Averages over the length of a new voxel along every axis that becomes coarser.

    Without it thin slices keep their noise when every fourth is taken, and a hospital's slice thickness shows in
    its images.

    Args:
        keys: what to transform.
        spacing: voxel edge lengths in mm to come; 0 keeps an axis.
    """

    def __init__(self, keys: KeysCollection, spacing: Sequence[float]):
        super().__init__(keys)
        self.spacing = tuple(spacing)

    def _changed(self, value: MetaTensor) -> MetaTensor:
        channels, *shape = value.shape
        voxels = resampled_shape(shape, value.affine.numpy(), self.spacing)
        if reason := too_large((channels, *voxels) if channels > 1 else voxels):
            raise UserError(f"{value.meta.get('filename_or_obj', 'the volume')}, with spacing {self.spacing}: {reason}")
        for axis, (now, then) in enumerate(zip(value.pixdim.tolist(), self.spacing, strict=True), start=1):
            # Affines are rounded, so a ratio of 1.0001 is none.
            if then > 1.001 * now:
                averaged = correlate1d(value.numpy(), _box(then / now), axis=axis, mode="nearest")
                value = MetaTensor(torch.from_numpy(averaged), meta=value.meta)
        return value


class LungBoxd(MapTransform):
    """Cuts out the lungs' bounding box, square in mm in-plane and filled where it leaves the image.

    What was found goes under the key ``KEY_lungs``: a :class:`~medpfl.data.kinds.scans.lung.Lungs`, or None.

    Args:
        keys: what to transform.
        crop: False only makes the slices square.
        behind: what fills them.
    """

    def __init__(self, keys: KeysCollection, crop: bool = True, behind: float = AIR):
        super().__init__(keys)
        self.crop, self.behind = crop, behind

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        out = dict(data)
        for key in self.key_iterator(out):
            volume: MetaTensor = out[key]
            spacing, voxels = volume.pixdim.tolist(), volume.as_tensor()[0]
            lungs = out[f"{key}_lungs"] = find_lungs(voxels.numpy(), spacing) if self.crop else None
            box = lungs.box if lungs else tuple((0, n) for n in voxels.shape)
            (x0, x1), (y0, y1) = square(box[:2], spacing[:2], voxels.shape[:2])
            z0, z1 = box[2]
            inside = voxels[max(x0, 0) : x1, max(y0, 0) : y1, z0:z1]
            outside = (0, 0, max(-y0, 0), max(y1 - voxels.shape[1], 0), max(-x0, 0), max(x1 - voxels.shape[0], 0))
            out[key] = F.pad(inside, outside, value=self.behind)[None]
        return out


class AxialSlicesd(EachValued):
    """Takes at most ``count`` evenly spaced slices along the last axis."""

    def __init__(self, keys: KeysCollection, count: int):
        super().__init__(keys)
        self.count = count

    def _changed(self, value: Tensor) -> Tensor:
        there = value.shape[-1]
        return value[..., evenly(there, min(self.count, there))]


class FixedSlicesd(EachValued):
    """Exactly ``count`` of the slices (k, ...): evenly spaced ones, or the nearest repeated where there are fewer."""

    def __init__(self, keys: KeysCollection, count: int):
        super().__init__(keys)
        self.count = count

    def _changed(self, value: Tensor) -> Tensor:
        return value[evenly(len(value), self.count)]


class StackedSlicesd(EachValued):
    """All slices (k, 1, H, W) as one volume (1, k, H, W)."""

    def _changed(self, value: Tensor) -> Tensor:
        return value.transpose(0, 1)


class ScreenSlicesd(EachValued):
    """(1, X, Y, k) in RAS to (k, 1, H, W) float16 as on a screen: anterior above, the patient's right on the left."""

    def _changed(self, value: Tensor) -> Tensor:
        plain = value.as_tensor() if isinstance(value, MetaTensor) else value
        return plain.permute(3, 0, 2, 1).flip(2, 3).to(torch.float16).contiguous()


def evenly(there: int, wanted: int) -> list[int]:
    """Indices of ``wanted`` evenly spaced slices of ``there``, each the middle one of its share.

    >>> evenly(10, 5)
    [1, 3, 5, 7, 9]
    >>> evenly(2, 4)
    [0, 0, 1, 1]
    """
    return [(2 * i + 1) * there // (2 * wanted) for i in range(wanted)]


def _box(width: float) -> np.ndarray:
    """Weights of a mean over ``width`` voxels around a voxel's centre; those at the ends count by what they cover."""
    reach = int(np.ceil((width - 1) / 2))
    weights = np.ones(2 * reach + 1)
    weights[[0, -1]] = (width - (2 * reach - 1)) / 2
    return weights / width
