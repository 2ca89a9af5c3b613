"""Where the lungs are, roughly and quickly: air inside the body.

Air is inside the body where tissue encloses it within a slice. On a tight field of view the image's edge cuts lungs
open: air that meets the edge, or the padding outside the scanner's circle, counts as lung if it is denser than air is
around a body, and has tissue in enough directions; a mattress has the patient in one only. Everything so found is
kept, but for the windpipe further than 20 mm above the lungs. Where one half of the body has no lung with air in it
(collapsed, consolidated, removed), the box is as wide on that side as on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy import ndimage

from medpfl.data.kinds.scans.preprocessing import AIR

Range = tuple[int, int]

_COARSE = 2.5
"""mm of the grid on which lungs are looked for."""
_LIMIT = -400.0
"""HU between lung and tissue."""
_OUTSIDE = -975.0
"""HU that a quarter of the air around a body does not exceed, blankets and foam included; of lung, even with severe
emphysema, it is less."""
_SHARE = 0.05
"""Least share of the body that is lung in a scan of the chest, and of the largest slice of lung where lungs end."""
_SIDES = 1.5
"""Of four directions within a slice, in how many a piece of lung has tissue, on average over its voxels."""
_LARGE, _SMALL = 0.1, 0.01
"""Sizes, as shares of the largest piece of lung: what is smaller than the first counts only beside larger pieces."""
_ABOVE = 20.0
"""mm above the slice where the lungs end that are kept: their tips, and as much of the windpipe."""


@dataclass(frozen=True)
class Lungs:
    """The lungs of a volume.

    Attributes:
        box: first and one past the last index along each axis, with a margin of a voxel of the coarse grid.
        kept: share of the air inside the body that the box keeps; what it leaves out is windpipe.
        cut: share of the lungs' slices in which the image's edge cuts them.
    """

    box: tuple[Range, Range, Range]
    kept: float
    cut: float


def find_lungs(volume: np.ndarray, spacing: Sequence[float]) -> Lungs | None:
    """The lungs of a scan, None if there are none: less than a twentieth of the body is air.

    Args:
        volume: (X, Y, Z) HU, Z along the body to the head.
        spacing: voxel edge lengths in mm.
    """
    factors = [max(1, round(_COARSE / length)) for length in spacing]
    factors = [min(factor, n) for factor, n in zip(factors, volume.shape, strict=True)]
    lengths = [length * factor for length, factor in zip(spacing, factors, strict=True)]
    coarse = _shrink(volume, factors)
    tissue = _without_table(coarse > _LIMIT, max(lengths[:2]))
    body = _largest(tissue)
    if body is None:
        return None
    inside, at_edge = _air_inside(coarse, body)
    pieces, count = ndimage.label(inside & (coarse < _LIMIT))
    numbers = np.arange(1, count + 1)
    within = ndimage.mean(_sides(tissue), pieces, numbers) >= _SIDES
    if not within.any():
        return None
    sizes = np.bincount(pieces.ravel())[1:] * within
    large = numbers[sizes >= _LARGE * sizes.max()]
    if sizes[large - 1].sum() < _SHARE * (body.sum() + sizes.sum()):
        return None
    found = _with_small(pieces, large, numbers[within & (sizes >= _SMALL * sizes.max())])
    kept = found.copy()
    areas = found.sum(axis=(0, 1))
    end = int(np.flatnonzero(areas >= _SHARE * areas.max())[-1]) + 1
    kept[..., end + ceil(_ABOVE / lengths[2]) :] = False
    ranges = [_range(kept, axis) for axis in range(3)]
    ranges[0] = _both_sides(kept, body, ranges[0])
    box = [
        (max(0, (start - 1) * factor), min(n, (stop + 1) * factor))
        for (start, stop), factor, n in zip(ranges, factors, volume.shape, strict=True)
    ]
    slices = kept.any(axis=(0, 1))
    cut = (kept & at_edge).any(axis=(0, 1)).sum() / slices.sum()
    return Lungs(tuple(box), float(kept.sum() / found.sum()), float(cut))


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


_IN_PLANE = ndimage.generate_binary_structure(3, 1) & np.array([False, True, False])
"""Neighbours within a slice: lungs are open at the ends of a scan that does not cover them all."""


def _air_inside(coarse: np.ndarray, body: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What may be inside the body besides tissue, and which voxels of the slices are at the edge of what was seen."""
    padding, _ = ndimage.label(coarse <= AIR + 1, _IN_PLANE)
    void = np.isin(padding, _at_border(padding))
    at_edge = ndimage.binary_dilation(void, _IN_PLANE)
    at_edge[[0, -1]] = at_edge[:, [0, -1]] = True
    labels, count = ndimage.label(~body & ~void, _IN_PLANE)
    is_inside = np.arange(count + 1) > 0
    cut = np.unique(labels[at_edge])
    if len(cut := cut[cut > 0]):
        is_inside[cut] = _lower_quartiles(coarse, np.where(coarse < _LIMIT, labels, 0), cut) > _OUTSIDE
    return is_inside[labels], at_edge


def _sides(tissue: np.ndarray) -> np.ndarray:
    """In how many of four directions within its slice a voxel has tissue."""
    count = np.zeros(tissue.shape, dtype=np.int8)
    for axis in (0, 1):
        count += np.logical_or.accumulate(tissue, axis)
        count += np.flip(np.logical_or.accumulate(np.flip(tissue, axis), axis), axis)
    return count


def _lower_quartiles(values: np.ndarray, labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Of the values of each wanted label, in ascending order; AIR for those that are nowhere."""
    chosen = np.isin(labels, wanted)
    values, labels = values[chosen], labels[chosen]
    ordered = values[np.lexsort((values, labels))]
    firsts, counts = np.searchsorted(np.sort(labels), wanted), np.bincount(labels, minlength=wanted[-1] + 1)[wanted]
    there = counts > 0
    quartiles = np.full(len(wanted), AIR)
    quartiles[there] = ordered[(firsts + counts // 4)[there]]
    return quartiles


def _at_border(labels: np.ndarray) -> np.ndarray:
    """Numbers of the pieces that touch a slice's border, without 0."""
    touching = np.unique(np.concatenate([edge.ravel() for edge in (labels[[0, -1]], labels[:, [0, -1]])]))
    return touching[touching > 0]


def _with_small(pieces: np.ndarray, large: np.ndarray, small: np.ndarray) -> np.ndarray:
    """The large pieces, and the small ones between the ends of those: gas of the bowel goes on below."""
    found = np.isin(pieces, large)
    start, stop = _range(found, 2)
    found[..., start:stop] |= np.isin(pieces[..., start:stop], small)
    return found


def _range(mask: np.ndarray, axis: int) -> Range:
    there = np.flatnonzero(mask.any(axis=tuple(a for a in range(3) if a != axis)))
    return int(there[0]), int(there[-1]) + 1


def _both_sides(lungs: np.ndarray, body: np.ndarray, found: Range) -> Range:
    """The lungs' range from right to left; mirrored at the body's middle if hardly any lung is on one side of it."""
    start, stop = _range(body | lungs, 0)
    middle = (start + stop) // 2
    right, left = int(lungs[:middle].sum()), int(lungs[middle:].sum())
    if min(right, left) >= _LARGE * (right + left):
        return found
    return max(0, min(found[0], start + stop - found[1])), min(lungs.shape[0], max(found[1], start + stop - found[0]))
