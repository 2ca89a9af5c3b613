"""Segments of a DICOM segmentation object, as masks on the series that they were made of."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from pydicom import Dataset

from medpfl.core.errors import UserError, first_line
from medpfl.data.structures.contours import OFF
from medpfl.data.structures.grid import Grid

_BESIDE = 0.05
"""Pixels by which a frame's first may lie beside one of the series."""


def segments_mask(dataset: Dataset, numbers: Collection[int], grid: Grid) -> np.ndarray:
    """Voxels that are in one of the segments; of a fractional one from a half on.

    Args:
        dataset: the segmentation object, with its pixels.
        numbers: SegmentNumbers.
        grid: of the series that it was made of. A frame may be a cut-out of a slice, or have its rows and columns along
            other axes and in other directions, as of a program that has turned the volume.

    Returns:
        (slices, rows, columns) bool.

    Raises:
        UserError: its pixels cannot be decoded, or its frames do not lie on the series' voxels.
    """
    try:
        frames = dataset.pixel_array
    except Exception as error:  # decoders raise whatever they like on damaged pixels
        raise UserError(f"its pixels cannot be decoded: {first_line(error)}") from None
    frames = frames.reshape(-1, int(dataset.Rows), int(dataset.Columns))
    kind = str(dataset.get("SegmentationType") or "BINARY")
    least = 0.5 * float(dataset.get("MaximumFractionalValue") or 1) if kind == "FRACTIONAL" else 1
    mask = np.zeros(grid.shape, dtype=bool)
    for number, frame in enumerate(frames):
        if kind == "LABELMAP":
            there = np.isin(frame, list(numbers))
        elif int(_group(dataset, number, "SegmentIdentificationSequence").ReferencedSegmentNumber) in numbers:
            there = frame >= least
        else:
            continue
        first, ways = _place(dataset, number, grid)
        mask[tuple((first + np.argwhere(there) @ ways).T)] = True
    return mask


def _place(dataset: Dataset, number: int, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Slice, row and column of a frame's first pixel, (3,), and the way to its next row and column in these, (2, 3)."""
    row, column = np.split(
        np.array(_group(dataset, number, "PlaneOrientationSequence").ImageOrientationPatient, float), 2
    )
    between_rows, between_columns = map(float, _group(dataset, number, "PixelMeasuresSequence").PixelSpacing)
    steps = np.stack([column * between_rows, row * between_columns])
    ways = np.rint(steps @ np.linalg.inv(grid.steps))
    found = grid.indices([_group(dataset, number, "PlanePositionSequence").ImagePositionPatient])[0]
    first = np.rint(found)
    corners = np.stack([first, first + (np.array([int(dataset.Rows), int(dataset.Columns)]) - 1) @ ways])
    along = np.abs(ways)
    straight = (along.sum(axis=1) == 1).all() and along.sum(axis=0).max() == 1
    off = (np.abs(found - first) > (OFF, _BESIDE, _BESIDE)).any()
    aside = np.abs((steps - ways @ grid.steps) * (along @ grid.shape)[:, None]).max()
    turned = not straight or aside > 0.5 * min(between_rows, between_columns)
    if turned or off or (corners < 0).any() or (corners >= grid.shape).any():
        raise UserError(f"its frame {number + 1} does not lie on the voxels of its series")
    return first.astype(np.int64), ways.astype(np.int64)


def _group(dataset: Dataset, number: int, name: str) -> Dataset:
    """A frame's own functional group, else the one that all share."""
    frames = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    shared = dataset.get("SharedFunctionalGroupsSequence") or ()
    for groups in (*frames[number : number + 1], *shared):
        if found := groups.get(name):
            return found[0]
    raise UserError(f"its frame {number + 1} has no {name}")
