"""Structures of a DICOM RT structure set, drawn as closed lines in the planes of a series, as masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from pydicom import Dataset

from medpfl.core.errors import UserError
from medpfl.data.structures.grid import Grid

CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR", "CLOSED_PLANAR_XOR")
"""Kinds of contours (C.8.8.6.3) that have an inside; points and open lines have none."""
OFF = 0.25
"""So much of the way to the next slice a contour's points may lie from a slice: positions are rounded."""
_ON = 0.01
"""Pixels by which corners may lie beside voxels' centres that they are meant to be."""


def contours_mask(dataset: Dataset, numbers: Collection[int], grid: Grid) -> tuple[np.ndarray, list[str]]:
    """Voxels whose centres are inside one of the structures.

    Lines of one structure in one slice that lie in each other leave a hole, and so on (even-odd rule). Where all lines
    of a structure run from centre to centre along rows, columns and diagonals, a program has traced a mask's outermost
    voxels (as OpenCV does): they are in it, also where the line goes forth and back.

    Args:
        dataset: the RT structure set.
        numbers: ROINumbers of the structures.
        grid: of the series that they are drawn on.

    Returns:
        (slices, rows, columns) bool, and what is odd, in words.

    Raises:
        UserError: a structure has no closed line, or one that lies beside the series' slices.
    """
    mask, odd = np.zeros(grid.shape, dtype=bool), []
    names = {int(roi.ROINumber): str(roi.get("ROIName") or "") for roi in dataset.get("StructureSetROISequence") or ()}
    drawn = {int(roi.ReferencedROINumber): roi for roi in dataset.get("ROIContourSequence") or ()}
    for number in sorted(numbers):
        name = names.get(number, number)
        lines = _lines(drawn.get(number), grid, name)
        if not lines:
            raise UserError(f"{name!r} has no closed line in any slice")
        traced = all(_is_traced(polygon) for polygons in lines.values() for polygon in polygons)
        for at, polygons in lines.items():
            mask[at] |= filled(polygons, grid.shape[1:])
            if traced:
                rows, columns = _passed(polygons, grid.shape[1:])
                mask[at, rows, columns] = True
        if traced:
            odd.append(f"{name!r} has its lines from centre to centre of voxels, as traced of a mask: these are in it")
        between = sorted(set(range(min(lines), max(lines) + 1)) - lines.keys())
        if between:
            odd.append(f"{name!r} is drawn in {len(lines)} slices and not in {len(between)} between them: not there")
    return mask, odd


def filled(polygons: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Pixels whose centres lie inside an odd number of closed lines.

    A centre on a line is inside where the inside begins there and outside where it ends, in the order of rows and
    columns, so that areas that share a line share no pixel.

    Args:
        polygons: each (n, 2), row and column of its corners in fractions of pixels; the last is joined to the first.
        shape: rows, columns.

    Returns:
        (rows, columns) bool.
    """
    rows, columns = shape
    begin, end = np.concatenate(polygons), np.concatenate([np.roll(p, -1, axis=0) for p in polygons])
    down = begin[:, :1] < end[:, :1]  # one way, so that two areas cross their common line at the same place
    begin, end = np.where(down, begin, end), np.where(down, end, begin)
    at = np.arange(rows)
    edge, row = np.nonzero((begin[:, :1] <= at) != (end[:, :1] <= at))
    (y, x), (dy, dx) = begin[edge].T, (end[edge] - begin[edge]).T
    crossing = x + (at[row] - y) * dx / dy
    changes = np.zeros((rows, columns + 1), dtype=np.int64)
    np.add.at(changes, (row, np.clip(np.ceil(crossing), 0, columns).astype(np.int64)), 1)
    return np.cumsum(changes[:, :-1], axis=1) % 2 == 1


def _numbers(contour: Dataset) -> np.ndarray:
    """A line's, (n,) mm: of their text, as pydicom makes an object of each, which takes long."""
    content = contour.get_item("ContourData").value
    if isinstance(content, bytes):
        content = content.rstrip(b"\0 ").split(b"\\")
    return np.array(content, dtype=np.float64)


def _is_traced(polygon: np.ndarray) -> bool:
    """Whether a line goes from pixel to pixel along rows, columns and diagonals."""
    corners = np.rint(polygon)
    rows, columns = np.abs(np.roll(corners, -1, axis=0) - corners).T
    return bool(np.abs(polygon - corners).max() < _ON and ((rows == 0) | (columns == 0) | (rows == columns)).all())


def _passed(polygons: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Pixels that traced lines go through, (2, n): rows, columns."""
    begin = np.concatenate([np.rint(p) for p in polygons]).astype(np.int64)
    way = np.concatenate([np.roll(np.rint(p), -1, axis=0) for p in polygons]).astype(np.int64) - begin
    steps = np.maximum(np.abs(way).max(axis=1), 1)
    step = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    at = np.repeat(begin, steps, axis=0) + step[:, None] * np.repeat(np.sign(way), steps, axis=0)
    return at[((at >= 0) & (at < shape)).all(axis=1)].T


def _lines(roi: Dataset | None, grid: Grid, name: str | int) -> dict[int, list[np.ndarray]]:
    """The closed lines of a structure by slice, each (n, 2), row and column."""
    lines: dict[int, list[np.ndarray]] = {}
    for contour in (roi.get("ContourSequence") or ()) if roi is not None else ():
        if str(contour.get("ContourGeometricType") or "") not in CLOSED:
            continue
        numbers = _numbers(contour)
        if len(numbers) != 3 * int(contour.NumberOfContourPoints) or not np.isfinite(numbers).all():
            raise UserError(
                f"{name!r} has a line of {contour.NumberOfContourPoints} points with {len(numbers)} numbers"
            )
        places = grid.indices(numbers.reshape(-1, 3))
        at = round(float(places[:, 0].mean()))
        if np.abs(places[:, 0] - at).max() > OFF:
            raise UserError(f"{name!r} has a line that lies in no slice of the series: it is drawn on another one")
        if not 0 <= at < grid.shape[0]:
            raise UserError(f"{name!r} has a line beyond the first or last slice of the series: slices are missing")
        lines.setdefault(at, []).append(places[:, 1:])
    return lines
