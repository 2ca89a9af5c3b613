"""Where the lungs are, roughly and quickly: air inside the body."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from scipy import ndimage

Range = tuple[int, int]

_COARSE = 2.5
"""mm of the grid on which lungs are looked for."""
_LIMIT = -400.0
"""HU between lung and tissue."""
_SHARE = 0.05
"""Least share of the body that is lung in a scan of the chest, and of the largest slice of lung in any slice."""


def lung_box(volume: np.ndarray, spacing: Sequence[float]) -> tuple[Range, Range, Range] | None:
    """Bounding box of the lungs.

    Args:
        volume: (X, Y, Z) HU, Z along the body.
        spacing: voxel edge lengths in mm.

    Returns:
        First and one past the last index along each axis, with a margin of a voxel of the coarse grid; None if no
        lungs are found.
    """
    factors = [max(1, round(_COARSE / length)) for length in spacing]
    factors = [min(factor, n) for factor, n in zip(factors, volume.shape, strict=True)]
    coarse = _shrink(volume, factors)
    body = _largest(_without_table(coarse > _LIMIT, max(s * f for s, f in zip(spacing[:2], factors[:2], strict=True))))
    if body is None:
        return None
    inside = _holes(body)
    labels, count = ndimage.label(inside & (coarse < _LIMIT))
    if not count:
        return None
    sizes = np.bincount(labels.ravel())[1:]
    lungs = np.flatnonzero(sizes >= 0.1 * sizes.max())
    if sizes[lungs].sum() < _SHARE * (body.sum() + inside.sum()):
        return None
    kept = np.isin(labels, lungs + 1)
    # The windpipe goes on above the lungs, and only tips are left of them at the ends.
    areas = kept.sum(axis=(0, 1))
    kept[..., areas < _SHARE * areas.max()] = False
    box = []
    for axis, (factor, n) in enumerate(zip(factors, volume.shape, strict=True)):
        there = np.flatnonzero(kept.any(axis=tuple(a for a in range(3) if a != axis)))
        box.append((int(max(0, (there[0] - 1) * factor)), int(min(n, (there[-1] + 2) * factor))))
    return tuple(box)


def square(box: Sequence[Range], spacing: Sequence[float], shape: Sequence[int]) -> tuple[Range, Range]:
    """The smallest square in mm around an in-plane box; moved into the image where it fits, beyond it elsewhere."""
    side = max((stop - start) * length for (start, stop), length in zip(box, spacing, strict=True))
    ranges = []
    for (start, stop), length, n in zip(box, spacing, shape, strict=True):
        # Rounding first, or 32 voxels of 0.7 mm would need 33.
        size = ceil(round(side / length, 3))
        first = (start + stop - size) // 2
        first = min(max(first, 0), n - size) if size <= n else (n - size) // 2
        ranges.append((first, first + size))
    return tuple(ranges)


def _shrink(volume: np.ndarray, factors: Sequence[int]) -> np.ndarray:
    """Means over blocks; what does not fill a last block is left out."""
    shape = [n // f for n, f in zip(volume.shape, factors, strict=True)]
    cut = volume[tuple(slice(n * f) for n, f in zip(shape, factors, strict=True))]
    (x, y, z), (fx, fy, fz) = shape, factors
    return cut.reshape(x, fx, y, fy, z, fz).mean(axis=(1, 3, 5))


def _without_table(tissue: np.ndarray, pixel: float) -> np.ndarray:
    """Removes what is thinner than about 6 mm in-plane, the scanner's table; on coarse pixels that would be skin."""
    return ndimage.binary_opening(tissue, np.ones((3, 3, 1))) if pixel <= 4 else tissue


def _largest(mask: np.ndarray) -> np.ndarray | None:
    labels, count = ndimage.label(mask)
    return labels == np.bincount(labels.ravel())[1:].argmax() + 1 if count else None


def _holes(body: np.ndarray) -> np.ndarray:
    """What the body encloses, slice by slice: lungs are open at the ends of a scan that does not cover them all."""
    in_plane = np.zeros((3, 3, 3))
    in_plane[:, 1, 1] = in_plane[1, :, 1] = 1
    labels, count = ndimage.label(~body, in_plane)
    outside = np.zeros(count + 1, dtype=bool)
    for edge in (labels[0], labels[-1], labels[:, 0], labels[:, -1]):
        outside[edge.ravel()] = True
    outside[0] = True
    return ~outside[labels]
