"""Where the voxels of a DICOM series lie in space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.dicom_header import Header, read_header
from medpfl.data.kinds.scans.series import Series


@dataclass(frozen=True)
class Grid:
    """The voxels of a series.

    Attributes:
        shape: slices, rows, columns.
        origin: centre of the first voxel, (3,) mm in the patient's LPS coordinates.
        steps: (3, 3) mm: a row each for the way from a slice to the next, from a row, and from a column.
    """

    shape: tuple[int, int, int]
    origin: np.ndarray
    steps: np.ndarray

    @classmethod
    def of(cls, series: Series) -> Grid:
        """A usable series' grid; slices lie at even steps from the first to the last.

        Raises:
            UserError: a file has changed since the series was found.
        """
        headers = [_header(series, path) for path in series.files]
        first, last = headers[0], headers[-1]
        row, column = np.split(np.array(first.orientation), 2)
        between_rows, between_columns = first.pixel_spacing
        origin = np.array(first.position)
        step = (np.array(last.position) - origin) / (len(headers) - 1)
        steps = np.stack([step, column * between_rows, row * between_columns])
        return cls((len(headers), *first.matrix), origin, steps)

    def indices(self, points: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
        """Slice, row and column of points, (n, 3), in fractions of voxels; (n, 3) mm are given."""
        return (np.asarray(points, dtype=np.float64) - self.origin) @ np.linalg.inv(self.steps)


def _header(series: Series, path) -> Header:
    found = read_header(path)
    if not isinstance(found, Header) or found.uid != series.uid:
        raise UserError(f"{path}: is no slice of its series any more")
    return found
