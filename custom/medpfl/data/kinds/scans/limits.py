"""Sizes of volumes: those that none of a patient has (wrong units, or more than is read), and a whole chest's."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

MOST_VOXELS = 1 << 30
"""Voxels of the largest volume that is read: 4 GiB as 32-bit numbers, 1,024 slices of 1,024×1,024."""
WHOLE_CHEST = 150.0
"""mm that a scan covers at least if it shows both lungs of an adult."""
_SHORTEST, _LONGEST = 0.02, 50.0
"""mm that a voxel's edge has."""


def implausible(spacing: Sequence[float], shape: Sequence[int]) -> str | None:
    """Why a volume of such voxels is refused, in words; None if it is not.

    Args:
        spacing: voxel edge lengths, taken for mm.
        shape: voxels along each axis.
    """
    sizes = "×".join(f"{length:.4g}" for length in spacing)
    if not all(_SHORTEST <= length <= _LONGEST for length in spacing):  # NaN is not between them either
        lengths = sorted(spacing)
        unit = ": are these metres?" if lengths[-1] < _SHORTEST else ": are these micrometres?"
        hint = unit if lengths[-1] < _SHORTEST or lengths[0] > _LONGEST else ""
        return f"voxels of {sizes} mm{hint}; {_SHORTEST:g} to {_LONGEST:g} mm are read"
    return too_large(shape)


def too_large(shape: Sequence[int]) -> str | None:
    """Why so many voxels are refused, in words; None if they are not."""
    if prod(shape) <= MOST_VOXELS:
        return None
    needed, most = (voxels * 4 / 2**30 for voxels in (prod(shape), MOST_VOXELS))
    by = "×".join(f"{n:,}" for n in shape)
    return f"{by} voxels would need {needed:,.3g} GiB of memory; volumes of up to {most:g} GiB are read"


def resampled_shape(shape: Sequence[int], affine: np.ndarray, spacing: Sequence[float]) -> tuple[int, ...]:
    """Voxels of a volume once MONAI's ``Spacing`` has given them other edge lengths, its axes at right angles.

    Args:
        shape: of the volume, along x, y and z: ``Spacing`` takes shear out of a later axis, not of an earlier one.
        affine: of the volume, (4, 4).
        spacing: edge lengths to come, in mm along the same axes; 0 keeps one, all of them the volume as it is.
    """
    if not any(spacing):
        return tuple(shape)
    from monai.data.utils import compute_shape_offset, zoom_affine

    made, _ = compute_shape_offset(shape, affine, zoom_affine(affine, spacing, diagonal=False))
    return tuple(map(int, made))
