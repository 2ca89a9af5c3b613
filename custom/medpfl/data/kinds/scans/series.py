"""Finds the DICOM series in a folder and says which of them make a CT or MR volume, from headers alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from medpfl.data.files import files_below
from medpfl.data.finding import Finding
from medpfl.data.kinds.folders import xray
from medpfl.data.kinds.scans.dicom_header import Header, read_header
from medpfl.data.kinds.scans.geometry import stack
from medpfl.data.kinds.scans.no_slice import EMPTY, NoSlice, counted
from medpfl.data.kinds.scans.preprocessing import MODALITIES

Progress = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


_PATIENT = (-1000.0, 1000.0)
"""HU between which nearly all of a patient is, and padding should not be."""
_XRAY = ": an X-ray image is a picture, in a class folder or a table with a column picture"


@dataclass(frozen=True)
class Series:
    """One DICOM series.

    Attributes:
        uid: SeriesInstanceUID.
        patient: PatientID; empty if the files have none.
        folder: the folder that all its files are in or below.
        files: sorted by their position along the slices' normal.
        modality: one of :data:`~medpfl.data.kinds.scans.preprocessing.MODALITIES` in a series that can be used.
        spacing: distance of rows, of columns and of slices in mm; 0 where it makes no sense.
        thickness: slice thickness in mm, None if the files do not say.
        matrix: rows, columns.
        coverage: mm from bottom to top, along the axis that comes nearest; 0 where it makes no sense.
        description: SeriesDescription.
        date: of the study, as YYYYMMDD; empty if the files do not say.
        broken: files that are useless by themselves, and why; also such that are lost.
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
    description: str
    date: str
    broken: Mapping[Path, str]
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
        rest: files that are no slices of these.
        strays: those of them that are called like slices and are none, or were some of a series that nobody can tell;
            a slice that is lost to a series here is among the series' problems.
    """

    series: dict[str, Series]
    rest: tuple[NoSlice, ...]
    strays: tuple[NoSlice, ...]

    @cached_property
    def below(self) -> Mapping[Path, Sequence[Series]]:
        """The series whose slices all lie in a folder or below it, by the folder."""
        found: dict[Path, list[Series]] = {}
        for series in self.series.values():
            for folder in (series.folder, *series.folder.parents):
                found.setdefault(folder, []).append(series)
        return found

    def reasons(self, below: Path) -> str:
        """Why there is no series in a folder of this one, in words."""
        return counted([file for file in self.rest if below in file.path.parents])


def find_series(folder: Path) -> dict[str, Series]:
    """All DICOM series in a folder and below, by SeriesInstanceUID; see :func:`read_folder`."""
    return read_folder(folder).series


def read_folder(folder: Path, progress: Progress | None = None) -> Folder:
    """Reads the headers of all files in a folder and below; links to folders are followed once.

    Args:
        folder: where to look.
        progress: called with the number of files that are read and of all.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    return read_files(files_below(folder), progress)


def read_files(files: Sequence[Path], progress: Progress | None) -> Folder:
    """Reads the headers of files; see :func:`read_folder`."""
    groups: dict[str, list[Header]] = {}
    rest: list[NoSlice] = []
    for number, path in enumerate(files, start=1):
        found = read_header(path)
        if isinstance(found, Header):
            groups.setdefault(found.uid, []).append(found)
        else:
            rest.append(found)
        if progress:
            progress(number, len(files))
    rest = _suspected(rest, groups)
    lost = _by_series(rest, groups)
    series = {uid: _series(headers, lost.get(uid, ())) for uid, headers in groups.items()}
    told = {file.path for uid in series for file in lost.get(uid, ())}
    return Folder(series, tuple(rest), tuple(f for f in rest if f.what != "other" and f.path not in told))


def _suspected(rest: Sequence[NoSlice], groups: Mapping[str, Sequence[Header]]) -> list[NoSlice]:
    """The files, of which those without content count as lost where slices beside them have names of the same kind."""
    kinds = {(h.path.parent, h.path.suffix) for headers in groups.values() for h in headers}
    return [
        replace(file, what="lost")
        if file.what == "other" and file.reason == EMPTY and (file.path.parent, file.path.suffix) in kinds
        else file
        for file in rest
    ]


def _by_series(rest: Sequence[NoSlice], groups: Mapping[str, Sequence[Header]]) -> dict[str, list[NoSlice]]:
    """Lost slices by the series that they belong to: the one that they name, or the only one in their folder."""
    there: dict[Path, set[str]] = {}
    for uid, headers in groups.items():
        for header in headers:
            there.setdefault(header.path.parent, set()).add(uid)
    lost: dict[str, list[NoSlice]] = {}
    for file in rest:
        # A file that is cut short within the series' number has its first digits.
        near = [uid for uid in there.get(file.path.parent, ()) if uid.startswith(file.series)]
        named = [file.series] if file.series in groups else near
        if file.what == "lost" and len(named) == 1:
            lost.setdefault(named[0], []).append(file)
    return lost


def _series(headers: list[Header], lost: Sequence[NoSlice]) -> Series:
    first = headers[0]
    folder = Path(os.path.commonpath([h.path.parent for h in headers]))
    problems = [Finding("error", f"{file.path}: {file.reason}") for file in lost]
    problems += _of_files(headers)
    fatal = _not_a_volume(headers)
    ordered, step = tuple(sorted(headers, key=lambda h: (h.instance or 0, h.path))), 0.0
    if fatal:
        problems.append(Finding("error", f"{folder}: {fatal}"))
    else:
        stacked = stack(headers)
        ordered, step = stacked.headers, stacked.step
        problems += [Finding(f.level, f"{folder}: {f.message}") for f in stacked.findings]
        units = _units(headers) if first.modality == "CT" else []
        problems += [Finding("warning", f"{folder}: {message}") for message in units]
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
        description=first.description,
        date=first.date,
        broken={file.path: file.reason for file in lost} | {h.path: h.problem for h in headers if h.problem},
        problems=tuple(problems),
    )


def _of_files(headers: Sequence[Header]) -> list[Finding]:
    """What is wrong with single files, once for all that it is wrong with: a series is compressed as a whole."""
    wrong: dict[str, list[Path]] = {}
    for header in headers:
        if header.problem:
            wrong.setdefault(header.problem, []).append(header.path)
    return [
        Finding("error", f"{paths[0]}: {problem}" + (f" (and {len(paths) - 1:,} more)" if paths[1:] else ""))
        for problem, paths in wrong.items()
    ]


def _coverage(header: Header, slices: int, step: float) -> float:
    row, column = np.split(np.array(header.orientation), 2)
    (rows, columns), (between_rows, between_columns) = header.matrix, header.pixel_spacing
    lengths = columns * between_columns, rows * between_rows, slices * step
    return float(lengths[np.abs([row[2], column[2], np.cross(row, column)[2]]).argmax()])


def _not_a_volume(headers: Sequence[Header]) -> str | None:
    if other := next((h for h in headers if h.modality not in MODALITIES), None):
        instead = _XRAY if other.modality in xray.MODALITIES else ""
        return f"modality {other.modality or 'unknown'}, not CT or MR{instead}"
    if len({h.modality for h in headers}) > 1:
        return "CT and MR in one series"
    if any(h.multi_frame for h in headers):
        kind = headers[0].modality
        return f"a multi-frame file (Enhanced {kind}); one file a slice is needed: convert it to classic {kind} images"
    if localizers := [h for h in headers if h.localizer]:
        if len(localizers) == len(headers):
            return "a localizer (scout view), not a volume"
        count = f"{len(localizers)} of {len(headers)} files"
        return f"a localizer (scout view) among its slices ({count}, {localizers[0].path.name} first): take it out"
    if len(headers) == 1:
        return "a single slice, not a volume"
    if len(patients := {h.patient for h in headers}) > 1:
        return f"slices of {len(patients)} patients in one series"
    return None


def _units(headers: Sequence[Header]) -> list[str]:
    messages = []
    if without := [h for h in headers if not h.rescaling and not h.problem]:
        name = without[0].path.name
        messages.append(f"{len(without)} slices lack rescale slope or intercept, {name} first: taken as HU")
    for part, name in enumerate(("RescaleSlope", "RescaleIntercept")):
        said = [(h.path.name, h.rescaling[part]) for h in headers if h.rescaling]
        usual = Counter(value for _, value in said).most_common(1)[0][0] if said else 0.0
        if odd := [(file, value) for file, value in said if value != usual]:
            file, value = odd[0]
            messages.append(
                f"{len(odd)} of {len(headers)} slices have another {name}, {value:g} in {file}, than the {usual:g} of "
                "most: have they been converted otherwise?"
            )
    low, high = _PATIENT
    if padded := [h for h in headers if h.padding and h.padding[0] < high and h.padding[1] > low]:
        said = " to ".join(f"{value:g}" for value in dict.fromkeys(padded[0].padding))
        messages.append(
            f"padding (PixelPaddingValue) of {said} HU in {padded[0].path.name}, which a patient has too: all such "
            "voxels are taken for air"
        )
    if other := next((h for h in headers if h.unit.upper() != "HU"), None):
        messages.append(f"values in the unit {other.unit!r}, not HU ({other.path.name})")
    return messages
