"""Sizes that no volume of a patient has: wrong units, or more than is read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

MOST_VOXELS = 1 << 30
"""Voxels of the largest volume that is read: 4 GiB as 32-bit numbers, 1,024 slices of 1,024×1,024."""
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
