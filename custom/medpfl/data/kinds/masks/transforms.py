"""MONAI dictionary transforms of ours, for volumes with masks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import nibabel
import numpy as np
import torch
import torch.nn.functional as F
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform, NormalizeIntensity, ScaleIntensityRange
from nibabel.orientations import apply_orientation, io_orientation, ornt_transform
from torch import Tensor

from medpfl.core.errors import UserError, first_line
from medpfl.core.numbers_in_words import count
from medpfl.data.kinds.scans.nifti import require_whole
from medpfl.data.kinds.scans.values import without_offset, without_sign

Data = Mapping[Hashable, Any]

CT = -200.0
"""A volume with values below it is taken for CT: other scanners' values begin at 0, or near it."""


class Stored(NamedTuple):
    """What a reader must know of a volume's file.

    Attributes:
        unknown: how many voxels are not numbers.
        ct: whether its values look like CT.
        hounsfield: whether they are read as HU.
    """

    unknown: int
    ct: bool
    hounsfield: bool

    def odd(self) -> list[str]:
        """In words; none where nothing is."""
        words = [f"{self.unknown:,} voxels are not numbers (NaN): taken as the least value"] if self.unknown else []
        return words + [f"no value is below {CT:g}: is it CT, in HU?"] * (self.hounsfield and not self.ct)


class LoadVolumed(MapTransform):
    """A NIfTI file to (C, X, Y, Z) float32 with its affine; what is not a number becomes the least number there.

    Its :class:`Stored` is under ``stored``.

    Args:
        keys: what to load.
        channels: that the file must have, in its fourth dimension where there are several.
        hounsfield: whether values that look like HU without their offset are refused.

    Raises:
        UserError: the file cannot be read, has other dimensions, shows nothing or has wrong values; it is named.
    """

    def __init__(self, keys: KeysCollection, channels: int = 1, hounsfield: bool = False):
        super().__init__(keys)
        self.channels, self.hounsfield = channels, hounsfield

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        out = dict(data)
        for key in self.key_iterator(out):
            out[key], out["stored"] = self._load(Path(out[key]))
        return out

    def _load(self, file: Path) -> tuple[MetaTensor, Stored]:
        require_whole(file)
        try:
            stored = nibabel.load(file)
            values, affine = np.asarray(stored.dataobj, dtype=np.float32), stored.affine
        except MemoryError:
            raise UserError(f"{file}: the volume does not fit into this machine's memory") from None
        except Exception as error:  # nibabel, gzip and zlib raise errors of many kinds on damaged files.
            raise UserError(f"{file}: cannot be read: {first_line(error)}") from None
        values = channels_first(values)
        if values.ndim != 4 or len(values) != self.channels:
            there = "×".join(map(str, values.shape[1:])) + f" with {len(values)} channels" * (values.ndim == 4)
            raise UserError(
                f"{file}: is {there}; a volume with {count(self.channels, 'channel')} is needed "
                "(--data-arg channels=N says how many)"
            )
        known = np.isfinite(values)
        if not known.all():
            if np.isinf(values).any() or not known.any():
                raise UserError(f"{file}: has values that are no numbers")
            values = np.nan_to_num(values, nan=float(values[known].min()))
        if values.min() == values.max():
            raise UserError(f"{file}: every voxel has the value {values.flat[0]:g}")
        if wrong := without_sign(values):
            raise UserError(f"{file}: {wrong}")
        if self.hounsfield and (wrong := without_offset(values)):
            raise UserError(f"{file}: {wrong} --data-arg normalise=zscore or percentile takes other values than HU")
        image = MetaTensor(torch.from_numpy(np.ascontiguousarray(values)), affine=torch.from_numpy(affine.copy()))
        return image, Stored(int(known.size - known.sum()), looks_like_ct(image), self.hounsfield)


class PlacedAsd(MapTransform):
    """Gives a mask its image's place in space, and the order of its axes.

    :func:`~medpfl.data.kinds.masks.volume_pair.read_head` has found both on one grid, but for rounding in the headers,
    by which resampling would make other shapes of them.

    Args:
        keys: the masks.
        image: the key of the image.
    """

    def __init__(self, keys: KeysCollection, image: Hashable):
        super().__init__(keys)
        self.image = image

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        out = dict(data)
        for key in self.key_iterator(out):
            mask, place = out[key], out[self.image].affine
            turn = turned_as(mask.affine.numpy(), place.numpy())
            values = apply_orientation(mask.as_tensor()[0].numpy(), turn)  # (X, Y, Z)
            out[key] = MetaTensor(torch.from_numpy(np.ascontiguousarray(values))[None], affine=place.clone())
        return out


def turned_as(affine: np.ndarray, other: np.ndarray) -> np.ndarray:
    """nibabel's orientation transform from one volume's axes, in order and direction, to another's."""
    return ornt_transform(io_orientation(affine), io_orientation(other))


def channels_first(values: np.ndarray) -> np.ndarray:
    """(X, Y, Z), (X, Y, Z, C) or NIfTI's (X, Y, Z, 1, C) as (C, X, Y, Z); others as they are."""
    if values.ndim == 5 and values.shape[3] == 1:
        values = values[:, :, :, 0]
    return values[None] if values.ndim == 3 else np.moveaxis(values, 3, 0) if values.ndim == 4 else values


class NormaliseVolumed(MapTransform):
    """Brings intensities into a common range, each channel by what is not zero in it, as ``how`` says.

    See :class:`~medpfl.data.kinds.masks.reading.Reading`; ``zscore`` leaves what is zero at 0. What ``auto`` takes for
    CT is the file's, under ``stored``: of larger voxels the lowest values may be gone.
    """

    def __init__(self, keys: KeysCollection, how: str, window: Sequence[float]):
        super().__init__(keys)
        low, high = window
        self.how = how
        self.zscore = NormalizeIntensity(nonzero=True, channel_wise=True)
        self.window = ScaleIntensityRange(a_min=low, a_max=high, b_min=-1.0, b_max=1.0, clip=True)

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        out, how = dict(data), self.how
        if how == "auto":
            how = "window" if out["stored"].ct else "zscore"
        for key in self.key_iterator(out):
            out[key] = self._normalised(out[key], how)
        return out

    def _normalised(self, value: MetaTensor, how: str) -> MetaTensor:
        if how == "zscore":
            return self.zscore(value)
        if how == "window":
            return self.window(value)
        if how == "percentile":
            return MetaTensor(torch.stack([_by_percentiles(c) for c in value.as_tensor()]), meta=value.meta)
        return value


def looks_like_ct(volume: Tensor) -> bool:
    """Whether values are as low as HU are."""
    return bool(volume.min() < CT)


def _by_percentiles(channel: Tensor) -> Tensor:
    inside = channel[channel != 0].numpy()
    low, high = np.percentile(inside, (1, 99)) if len(inside) else (0.0, 1.0)
    return ((channel - low) / (high - low or 1.0) * 2 - 1).clamp(-1, 1)


_PADDED_TOGETHER = 1 << 24
"""Pixels of padded slices that are in memory at once."""


class SquareSlicesd(MapTransform):
    """(C, D, H, W) to its slices, (D, C, size, size): antialiased, or of a mask by the nearest pixel.

    Under ``squared``, ``shape`` is what a slice was before, (H, W), and ``affine`` the volume's.

    Args:
        keys: what to make square.
        size: edge length in pixels.
        fit: ``pad`` adds the least value of the volume (of a mask 0), ``crop`` takes the largest square of the middle,
            ``stretch`` changes the proportions.
        mask: whether the values are classes.
    """

    def __init__(self, keys: KeysCollection, size: int, fit: Literal["pad", "crop", "stretch"], mask: bool = False):
        super().__init__(keys)
        self.size, self.fit, self.mask = size, fit, mask

    def __call__(self, data: Data) -> dict[Hashable, Any]:
        """See the class."""
        out = dict(data)
        for key in self.key_iterator(out):
            volume = out[key]
            slices = (volume.as_tensor() if isinstance(volume, MetaTensor) else volume).transpose(0, 1)
            height, width = slices.shape[-2:]
            if not self.mask:
                out["squared"] = {"shape": (height, width), "affine": getattr(volume, "affine", None)}
            # A few at a time: of a volume with far finer columns than rows the squares are many times as large.
            together = max(1, _PADDED_TOGETHER // (slices.shape[1] * max(height, width) ** 2))
            least = 0.0 if self.mask else float(slices.min())
            out[key] = torch.cat([self._squared(some, least) for some in slices.split(together)]).contiguous()
        return out

    def _squared(self, slices: torch.Tensor, least: float) -> torch.Tensor:
        height, width = slices.shape[-2:]
        if self.fit == "pad":
            rows, columns = (max(height, width) - side for side in (height, width))
            around = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
            slices = F.pad(slices, around, value=least)
        elif self.fit == "crop":
            edge = min(height, width)
            top, left = (height - edge) // 2, (width - edge) // 2
            slices = slices[..., top : top + edge, left : left + edge]
        size = (self.size, self.size)
        if slices.shape[-2:] == size:
            return slices
        if self.mask:
            return F.interpolate(slices, size, mode="nearest-exact")
        return F.interpolate(slices, size, mode="bilinear", antialias=True)


def pixel_factors(height: int, width: int, size: int, fit: str) -> tuple[float, float]:
    """By how much rows and columns lie further apart after :class:`SquareSlicesd`."""
    edges = {"pad": (max(height, width),) * 2, "crop": (min(height, width),) * 2, "stretch": (height, width)}[fit]
    return edges[0] / size, edges[1] / size
