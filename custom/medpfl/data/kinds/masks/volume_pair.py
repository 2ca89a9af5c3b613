"""A NIfTI volume and its mask: whether they fit each other, and both as a network sees them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import nibabel
import numpy as np
import torch
from monai.data import MetaTensor
from nibabel.orientations import inv_ornt_aff, io_orientation
from torch import Tensor

from medpfl.core.errors import UserError, first_line, user_error_in
from medpfl.core.masked_data import Spacing
from medpfl.core.numbers_in_words import by
from medpfl.data.finding import Finding
from medpfl.data.kinds.masks.classes_of import to_classes, values_in
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.masks.transforms import channels_first, pixel_factors, turned_as
from medpfl.data.kinds.masks.volume_steps import MASK, pipeline
from medpfl.data.kinds.scans.limits import resampled_shape
from medpfl.data.kinds.scans.nifti import read_volume, require_whole

if TYPE_CHECKING:
    from monai.transforms import Compose

log = logging.getLogger(__name__)

_APART = 0.5
"""Voxels' edges that a mask may lie beside its image: headers are rounded, and a mask is not finer than its voxels."""


class Head(NamedTuple):
    """What the headers of an image and its mask say.

    Attributes:
        shape: slices from the feet up, rows from front to back, columns from the patient's right to left.
        spacing: mm along these.
        affine: (4, 4), of columns, rows and slices.
        notes: what is odd.
    """

    shape: tuple[int, int, int]
    spacing: Spacing
    affine: np.ndarray
    notes: tuple[Finding, ...]

    def resampled(self, spacing: Sequence[float]) -> tuple[int, ...]:
        """The shape with voxels of other edge lengths.

        Args:
            spacing: mm along the same axes; 0 keeps an axis.
        """
        return resampled_shape(self.shape[::-1], self.affine, spacing[::-1])[::-1]


class Volume(NamedTuple):
    """A decoded volume.

    Attributes:
        image: (C, D, H, W), or slices (k, C, size, size); float16, or float32 where values stay as they are.
        mask: (D, H, W) or (k, size, size), uint8 classes.
        spacing: mm along slices, rows and columns of these.
        values: of the mask's file.
        ct: whether the image looks like CT.
    """

    image: Tensor
    mask: Tensor
    spacing: Spacing
    values: tuple[int, ...]
    ct: bool


def read_head(pair: Pair, *, resampled: bool = True) -> Head:
    """Compares the headers; UserError, naming the file, if one cannot be read or they are not of one grid.

    A mask may have its axes in another order or direction than its image, as some programs write them.

    Args:
        pair: the files.
        resampled: whether voxels are made anew, for what is said of them.
    """
    volumes = []
    for file in (pair.image, pair.mask):
        volume = read_volume(file, several=file == pair.image, resampled=resampled)
        if wrong := next((p for p in volume.problems if p.level == "error"), None):
            raise UserError(wrong.message)
        volumes.append((volume.shape, volume.problems))
    (shape, notes), (mask_shape, _) = volumes
    affine, other = (nibabel.load(file).affine for file in (pair.image, pair.mask))
    turn = turned_as(other, affine)
    other = other @ inv_ornt_aff(turn, mask_shape)
    mask_shape = tuple(mask_shape[axis] for axis in np.argsort(turn[:, 0]))
    if shape != mask_shape:
        raise UserError(
            f"{pair.mask}: has {by(mask_shape)} voxels, its image {pair.image} {by(shape)}: both must be of one grid"
        )
    corners = np.array([(*corner, 1) for corner in product(*((0, n - 1) for n in shape))])
    apart = np.linalg.norm((corners @ (affine - other).T)[:, :3], axis=1).max()
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    if apart > _APART * edges.min():
        theirs = np.linalg.norm(other[:3, :3], axis=0)
        what = (
            f"its voxels are {_mm(theirs)}, those of {pair.image} {_mm(edges)}"
            if _differ(edges, theirs)
            else (f"it lies up to {apart:.4g} mm beside its image {pair.image}")
        )
        raise UserError(f"{pair.mask}: {what}: both must be of one grid (the affine matrices in the headers differ)")
    axes = io_orientation(affine)[:, 0].astype(int)
    place = [int(np.flatnonzero(axes == axis)[0]) for axis in (2, 1, 0)]
    lying = affine[:, [*place[::-1], 3]]
    return Head(tuple(shape[i] for i in place), tuple(float(edges[i]) for i in place), lying, notes)


def mask_values(pair: Pair, count: int, reading: Reading) -> tuple[np.ndarray, tuple[int, ...]]:
    """The classes of a mask as they lie in its file, and its values; UserError names the mask."""
    require_whole(pair.mask)
    try:
        values = channels_first(np.asarray(nibabel.load(pair.mask).dataobj))
        if len(values) != 1:
            raise ValueError(f"has {len(values)} channels; one number a voxel, the class, is needed")
        present = values_in(values)
        return to_classes(values[0], present, count, reading.values), present
    except ValueError as error:
        raise UserError(f"{pair.mask}: {error}") from None
    except Exception as error:  # nibabel, gzip and zlib raise errors of many kinds on damaged files.
        raise UserError(f"{pair.mask}: cannot be read: {first_line(error)}") from None


def read_volume_pair(pair: Pair, reading: Reading, count: int) -> Volume:
    """A volume and its mask by the steps of :func:`~medpfl.data.kinds.masks.volume_steps.steps`.

    Raises:
        UserError: see :func:`read_head` and :func:`mask_values`; or the image has other channels.
    """
    head = read_head(pair)
    classes, present = mask_values(pair, count, reading)
    lying = MetaTensor(torch.from_numpy(classes[None].astype(np.float32)), affine=nibabel.load(pair.mask).affine)
    made = _run({"image": str(pair.image), MASK: lying}, reading)
    image, mask = (_plain(made[key]) for key in ("image", MASK))
    mask = mask[:, 0] if reading.dims == 2 else mask[0]
    spacing = [new or old for new, old in zip(reading.spacing, head.spacing, strict=True)]
    if reading.dims == 2:
        before = made["squared"]["shape"]
        for axis, factor in enumerate(pixel_factors(*before, reading.size, reading.fit), start=1):
            spacing[axis] *= factor
    for words in made["stored"].odd():
        log.warning("%s: %s", pair.image, words)
    return Volume(image, mask.round().to(torch.uint8), tuple(spacing), present, made["stored"].ct)


@lru_cache(maxsize=1)
def _steps(reading: Reading) -> Compose:
    return pipeline(reading)


def _run(item: dict, reading: Reading) -> dict:
    try:
        return _steps(reading)(item)
    except RuntimeError as error:
        if (cause := user_error_in(error)) is None:
            raise
        raise cause from None


def _plain(tensor: Tensor) -> Tensor:
    return (tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor).contiguous()


def _differ(edges: np.ndarray, others: np.ndarray) -> bool:
    return bool(np.abs(edges - others).max() > 0.01 * edges.min())


def _mm(edges: np.ndarray) -> str:
    return "×".join(f"{edge:.4g}" for edge in edges) + " mm"
