"""Finds the DICOM series in a folder and says which of them make a CT volume, from headers alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medpfl.core.errors import UserError
from medpfl.data.files import files_below
from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.dicom_header import Header, read_header
from medpfl.data.kinds.scans.geometry import stack


@dataclass(frozen=True)
class Series:
    """One DICOM series.

    Attributes:
        uid: SeriesInstanceUID.
        patient: PatientID; empty if the files have none.
        folder: the folder that all its files are in or below.
        files: sorted by their position along the slices' normal.
        modality: ``CT`` in a series that can be used.
        spacing: distance of rows, of columns and of slices in mm; 0 where it makes no sense.
        thickness: slice thickness in mm, None if the files do not say.
        matrix: rows, columns.
        coverage: mm from bottom to top, along the axis that comes nearest; 0 where it makes no sense.
        problems: what is odd or wrong; a series with an error among them cannot be used.
    """

    uid: str
    patient: str
    folder: Path
    files: tuple[Path, ...]
    modality: str
    spacing: tuple[float, float, float]
    thickness: float | None
    matrix: tuple[int, int]
    coverage: float
    manufacturer: str
    kernel: str
    problems: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether it makes a volume."""
        return not any(problem.level == "error" for problem in self.problems)


@dataclass(frozen=True)
class Folder:
    """What a folder holds.

    Attributes:
        series: by SeriesInstanceUID.
        ignored: number of files that are no DICOM images.
        broken: files that should be DICOM images and cannot be read, in words. A series in the same folder has them
            among its problems, since such a file may be one of its slices.
    """

    series: dict[str, Series]
    ignored: int
    broken: tuple[str, ...]


def find_series(folder: Path) -> dict[str, Series]:
    """All DICOM series in a folder and below, by SeriesInstanceUID; see :func:`read_folder`."""
    return read_folder(folder).series


def read_folder(folder: Path) -> Folder:
    """Reads the headers of all files in a folder and below; links to folders are followed once.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    groups: dict[str, list[Header]] = {}
    broken: list[tuple[Path, str]] = []
    ignored = 0
    for path in files_below(folder):
        try:
            header = read_header(path)
        except UserError as error:
            broken.append((path, str(error)))
            continue
        if header is None:
            ignored += 1
        else:
            groups.setdefault(header.uid, []).append(header)
    series = {uid: _series(headers, broken) for uid, headers in groups.items()}
    return Folder(series, ignored, tuple(message for _, message in broken))


def _series(headers: list[Header], broken: Sequence[tuple[Path, str]]) -> Series:
    first = headers[0]
    folder = Path(os.path.commonpath([h.path.parent for h in headers]))
    nearby = {h.path.parent for h in headers}
    problems = [Finding("error", message) for path, message in broken if path.parent in nearby]
    problems += _of_files(headers)
    fatal = _not_a_volume(headers)
    ordered, step = tuple(sorted(headers, key=lambda h: (h.instance or 0, h.path))), 0.0
    if fatal:
        problems.append(Finding("error", f"{folder}: {fatal}"))
    else:
        stacked = stack(headers)
        ordered, step = stacked.headers, stacked.step
        problems += [Finding(f.level, f"{folder}: {f.message}") for f in stacked.findings]
        problems += [Finding("warning", f"{folder}: {message}") for message in _units(headers)]
    rows, columns = first.pixel_spacing or (0.0, 0.0)
    return Series(
        uid=first.uid,
        patient=first.patient,
        folder=folder,
        files=tuple(h.path for h in ordered),
        modality=first.modality,
        spacing=(rows, columns, step),
        thickness=first.thickness,
        matrix=first.matrix,
        coverage=_coverage(first, len(headers), step) if step else 0.0,
        manufacturer=first.manufacturer,
        kernel=first.kernel,
        problems=tuple(problems),
    )


def _of_files(headers: Sequence[Header]) -> list[Finding]:
    """What is wrong with single files, once for all that it is wrong with: a series is compressed as a whole."""
    wrong: dict[str, list[Path]] = {}
    for header in headers:
        if header.problem:
            wrong.setdefault(header.problem, []).append(header.path)
    return [
        Finding("error", f"{paths[0]}" + (f" and {len(paths) - 1} more" if paths[1:] else "") + f": {problem}")
        for problem, paths in wrong.items()
    ]


def _coverage(header: Header, slices: int, step: float) -> float:
    row, column = np.split(np.array(header.orientation), 2)
    (rows, columns), (between_rows, between_columns) = header.matrix, header.pixel_spacing
    lengths = columns * between_columns, rows * between_rows, slices * step
    return float(lengths[np.abs([row[2], column[2], np.cross(row, column)[2]]).argmax()])


def _not_a_volume(headers: Sequence[Header]) -> str | None:
    if other := next((h for h in headers if h.modality != "CT"), None):
        return f"modality {other.modality or 'unknown'}, not CT"
    if any(h.multi_frame for h in headers):
        return "a multi-frame file (Enhanced CT); one file a slice is needed: convert it to classic CT images"
    if any(h.localizer for h in headers):
        return "a localizer (scout view), not a volume"
    if len(headers) == 1:
        return "a single slice, not a volume"
    if len(patients := {h.patient for h in headers}) > 1:
        return f"slices of {len(patients)} patients in one series"
    return None


def _units(headers: Sequence[Header]) -> list[str]:
    messages = []
    if without := [h for h in headers if not h.rescaled]:
        name = without[0].path.name
        messages.append(f"{len(without)} slices have no rescale slope and intercept, {name} first: taken as HU")
    if other := next((h for h in headers if h.unit.upper() != "HU"), None):
        messages.append(f"values in the unit {other.unit!r}, not HU ({other.path.name})")
    return messages
