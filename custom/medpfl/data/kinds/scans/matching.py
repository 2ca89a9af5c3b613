"""Matches a centre's label table with what lies on its disk; headers only."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.files import below, composed, existing, files_below, is_nifti, nifti_stem
from medpfl.data.finding import Finding, counted_once
from medpfl.data.kinds.scans.dicomdir import incomplete
from medpfl.data.kinds.scans.label_table import Columns, Row, other_volume, read_rows
from medpfl.data.kinds.scans.manifest import Centre, Manifest
from medpfl.data.kinds.scans.nifti import Volume, read_volume
from medpfl.data.kinds.scans.no_slice import counted
from medpfl.data.kinds.scans.preprocessing import Modality
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.kinds.scans.series import Folder, Progress, Series, read_folder
from medpfl.data.kinds.scans.unread_columns import unread_columns
from medpfl.data.kinds.scans.values import READS_MR
from medpfl.data.labels import Target, in_words, strata
from medpfl.data.patient_ids import named_as_others, two_names
from medpfl.data.patients import SPELT_TWICE, person

_OTHER: dict[Modality, str] = {
    "CT": READS_MR,
    "MR": "without --data-arg normalise CT is read",
}


@dataclass
class Reading:
    """What was found of a centre.

    Attributes:
        scans: what can be used, in the table's order.
        sources: for each of ``scans``, what its header said.
        lines: for each of ``scans``, where the table names it.
        errors: what is wrong with the table or the centre as a whole.
        broken: scans that cannot be used, by name; a manifest may allow to leave them out.
        warnings: what is odd.
        notes: what is worth knowing.
        ignored: files beside the table that are no images.
        modalities: number of series of each other modality than asked for that no row names.
    """

    scans: list[Scan] = field(default_factory=list)
    sources: list[Series | Volume] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ignored: int = 0
    modalities: Mapping[str, int] = field(default_factory=dict)


def examine(manifest: Manifest, name: str, modality: Modality, progress: Progress | None = None) -> Reading:
    """Reads a centre's table and headers and says everything that is wrong.

    Args:
        manifest: where the centre is.
        name: the centre's.
        modality: of the series; NIfTI does not say it.
        progress: called with the number of DICOM files that are read and of all.

    Raises:
        UserError: there is no such centre, or its table or folder cannot be read at all.
    """
    centre = manifest.centre(name)
    source = manifest.root / (centre.labels or centre.datalist)
    rows = read_rows(source, Columns(classes=manifest.classes))
    reading = Reading(errors=list(rows.problems))
    base = manifest.root / centre.folder if centre.labels else source.parent
    if not base.is_dir():
        raise UserError(f"{base}: {'not a folder' if base.exists() else 'there is no such folder'} (centre {name})")
    whole = None
    if centre.labels and not all(_is_file(row.series, centre) for row in rows.rows):
        whole = read_folder(base, progress)
        others = {file.path for file in whole.rest if file.what == "other" and not is_nifti(file.path)}
        reading.ignored = len(others - {source})
        reading.warnings += [f"{index}: {words}" for index, words in incomplete(whole.rest, files_below(base))]
        if strays := whole.strays:
            reading.warnings.append(f"{base}: files of no series that can be told: {counted(strays)}")
    used: dict[str, str] = {}
    refused = list(rows.refused)
    for row in rows.rows:
        try:
            target = row.target(manifest.classes)
        except UserError as error:
            reading.errors.append(str(error))
            refused.append(row.series)
            continue
        try:
            found = _find(row.series, base, centre, whole)
        except UserError as error:
            reading.broken.append(f"{row.where}: {error}")
            continue
        key = _key(found)
        if (first := used.setdefault(key, row.where)) != row.where:
            reading.errors.append(f"{row.where}: {row.series} is the series of {first} once more")
            continue
        if isinstance(found, Series) and found.usable and found.modality != modality:
            reading.broken.append(
                f"{row.where}: {row.series}: modality {found.modality}, not {modality}: {_OTHER[modality]}"
            )
            continue
        _add(reading, row, target, found, base, name)
    by = strata([scan.target for scan in reading.scans], len(manifest.classes))
    reading.scans = [replace(scan, label=label) for scan, label in zip(reading.scans, by, strict=True)]
    volumes = [source for source in reading.sources if isinstance(source, Volume)]
    odd = counted_once((volume.path, problem) for volume in volumes for problem in volume.problems)
    reading.warnings += [finding.message for finding in odd]
    unnamed = {row.where for row in rows.rows if not row.patient}
    _same_patient_id(reading, unnamed)
    _patients(reading, rows.rows, unnamed)
    _two_labels(reading, manifest)
    if centre.labels:
        found = [] if source.suffix.lower() == ".json" else unread_columns(source, Columns.what)
        reading.warnings += [f.message for f in found if f.level == "warning"]
        reading.notes += [f.message for f in found if f.level == "note"]
        reading.warnings += _unlabelled(base, whole, {*used, *_named(refused, base, centre, whole)}, modality)
        rest = [s for uid, s in whole.series.items() if uid not in used] if whole else []
        reading.modalities = Counter(s.modality or "not said" for s in rest if s.modality != modality)
    return reading


def _key(found: Series | Volume) -> str:
    return found.uid if isinstance(found, Series) else str(found.path)


def _named(names: list[str], base: Path, centre: Centre, whole: Folder | None) -> set[str]:
    """What the rows that cannot be used mean, as far as it is there."""
    keys = set()
    for name in filter(None, names):
        try:
            keys.add(_key(_find(name, base, centre, whole)))
        except UserError:
            continue
    return keys


def _is_file(name: str, centre: Centre) -> bool:
    """Whether a row names one file, not a DICOM series; a table may have both."""
    named = is_nifti(name) or other_volume(name) is not None
    return named or (centre.kind == "nifti" and centre.labels is not None)


def _find(name: str, base: Path, centre: Centre, whole: Folder | None) -> Series | Volume:
    path = existing(base, name)
    if Path(name).is_absolute():
        if (place := below(base, path)) is None:
            raise UserError(
                f"{name}: an absolute path, outside of {base}; paths in a table are relative to that folder"
            )
        path = place  # as the series are found
    if centre.labels and os.path.normpath(name).split(os.sep)[0] == os.pardir:  # links may lead outside
        raise UserError(f"{name}: outside of {base}; paths in a table are relative to that folder")
    if whole is not None and name in whole.series:
        return whole.series[name]
    if _is_file(name, centre):
        if other := other_volume(name):
            raise UserError(f"{path}: {other}")
        if not path.is_file() and not is_nifti(name):
            raise UserError(
                f"{name}: there is no such file in {base}, and the manifest has the kind nifti for centre "
                f"{centre.name}: it is dicom where rows are series{_hint(name, base)}"
            )
        if not path.is_file():
            raise UserError(f"{path}: there is no such file{_hint(name, base)}")
        return read_volume(path)
    if whole is not None and (lost := [file for file in whole.strays if file.series == name]):
        raise UserError(f"{name}: none of the series' files can be used: {counted(lost)}")
    if path.is_file():
        raise UserError(f"{path}: a file; name the series by its SeriesInstanceUID or its folder, or a NIfTI file")
    if not path.is_dir():
        kind = "neither a series nor a folder of that name" if centre.labels else "no such folder or NIfTI file"
        raise UserError(f"{name}: there is {kind} in {base}{_hint(name, base)}")
    return _only_series(path, whole or read_folder(path))


def _only_series(path: Path, read: Folder) -> Series:
    inside = read.below.get(path, ())
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise UserError(f"{path}: {len(inside)} series are in this folder; name one by its SeriesInstanceUID")
    if partly := [s for s in read.series.values() if any(path in file.parents for file in s.files)]:
        first = partly[0]
        elsewhere = next(file.parent for file in first.files if path not in file.parents)
        raise UserError(
            f"{path}: the series {first.uid} is in this folder and in {elsewhere}: name it by its UID if its slices "
            "lie in both, or delete one if that is a copy"
        )
    reasons = read.reasons(path)
    raise UserError(f"{path}: no DICOM series is in this folder" + (f": {reasons}" if reasons else ", it is empty"))


def _hint(name: str, base: Path) -> str:
    """Why a name in the table may lead nowhere."""
    if re.fullmatch(r"[\d.,]+E\+\d+", name, re.IGNORECASE):
        return ": a spreadsheet program has made a number of it; keep that column as text"
    if "\\" in name:
        return ": write / in paths, not \\"
    archive = name if name.lower().endswith(".zip") else f"{name}.zip"
    return f": {archive} is there, unpack it" if (base / archive).is_file() else ""


def _add(reading: Reading, row: Row, target: Target, found: Series | Volume, base: Path, centre: str) -> None:
    if isinstance(found, Series):
        reading.warnings += [p.message for p in found.problems if p.level == "warning"]
    if errors := [p.message for p in found.problems if p.level == "error"]:
        reading.broken += errors
        return
    if isinstance(found, Series):
        patient, kind, files, ident = row.patient or found.patient, "dicom", found.files, found.uid
    else:
        patient, kind, files = row.patient or composed(nifti_stem(found.path.name)), "nifti", (found.path,)
        ident = found.path.relative_to(base).as_posix() if found.path.is_relative_to(base) else row.series
    if not patient:
        reading.errors.append(f"{row.where}: no patient: the files have no PatientID, so the table must name one")
        return
    label, labels = (target, None) if isinstance(target, int) else (0, target)
    reading.scans.append(Scan(centre, patient, label, row.split, kind, files, ident, labels))
    reading.sources.append(found)
    reading.lines.append(row.where)


def _two_labels(reading: Reading, manifest: Manifest) -> None:
    labels: dict[str, set[Target]] = {}
    for scan in reading.scans:
        labels.setdefault(scan.patient, set()).add(scan.target)
    if different := [(patient, sorted(found)) for patient, found in labels.items() if len(found) > 1]:
        patient, found = different[0]
        more = f" (and {len(different) - 1:,} more patients like this)" if len(different) > 1 else ""
        if isinstance(found[0], int):
            classes = " and ".join(in_words(target, manifest.classes) for target in found)
            words = f"has scans of {classes}{more}: is tested once for each of them"
        else:
            words = f"has scans with different labels{more}: is tested once for each set of them"
        reading.notes.append(f"patient {patient} {words}")


def _same_patient_id(reading: Reading, unnamed: Collection[str]) -> None:
    """Makes series of one PatientID one patient's where the table leaves it open, and tells where it says otherwise."""
    ids = [source.patient if isinstance(source, Series) else "" for source in reading.sources]
    before = reading.scans
    reading.scans = named_as_others(before, ids, [where not in unnamed for where in reading.lines])
    if renamed := sum(one is not other for one, other in zip(before, reading.scans, strict=True)):
        reading.notes.append(
            f"{renamed:,} series without a patient in the table have the name that it gives others of their PatientID"
        )
    reading.warnings += two_names(reading.scans, ids, reading.lines)


def _patients(reading: Reading, rows: list[Row], unnamed: Collection[str]) -> None:
    files = [scan for scan in reading.scans if scan.kind == "nifti"]
    named = {row.patient for row in rows if row.patient}
    stems = Counter(scan.patient for scan in files if scan.patient not in named)
    if same := next((stem for stem, count in stems.items() if count > 1), None):
        reading.errors.append(f"{stems[same]} files are called {same}: name each one's patient in the table")
        # They are hardly one patient's, and what is said of them further on must not take them for that.
        reading.scans = [replace(s, patient=s.id) if stems.get(s.patient, 0) > 1 else s for s in reading.scans]
    alone = sum(s.kind == "nifti" and where in unnamed for s, where in zip(reading.scans, reading.lines, strict=True))
    if alone > 1 and not same:
        reading.notes.append(
            f"{alone:,} NIfTI files have no patient in the table, so each counts as its own: where one has several, a "
            "column patient keeps them in one part"
        )
    _in_two_parts(reading)


def _in_two_parts(reading: Reading) -> None:
    """Errors for scans of one person, however the name is written, that the table gives to two parts."""
    one: dict[str, tuple[Scan, str]] = {}
    for scan, where in zip(reading.scans, reading.lines, strict=True):
        first, there = one.setdefault(person(scan.patient), (scan, where))
        # Rows without a part beside rows with one have been refused.
        if not (first.split and scan.split and first.split != scan.split):
            continue
        words = (
            f"patient {scan.patient} is in {first.split} and in {scan.split} (first in {there}): "
            "all of a patient's scans must be in one part"
        )
        if first.patient != scan.patient:
            of_first = f"{first.patient!r} in {first.split} ({there})"
            words = f"patient {scan.patient!r} is in {scan.split} and {of_first}, and {SPELT_TWICE}"
        reading.errors.append(f"{where}: {words}")


def _unlabelled(base: Path, whole: Folder | None, used: set[str], modality: Modality) -> list[str]:
    series = sorted(whole.series.items()) if whole else ()
    files = sorted(filter(is_nifti, files_below(base)))
    return [
        *(
            f"{s.folder}: the series {s.uid} has no label and is not used"
            for uid, s in series
            if uid not in used and s.modality == modality
        ),
        *(f"{path}: has no label and is not used" for path in files if str(path) not in used),
    ]


def findings(reading: Reading, skip_broken: bool) -> list[Finding]:
    """A reading's problems as findings; what the manifest allows to leave out is a warning."""
    left_out = " (left out, as the manifest allows)" if skip_broken else ""
    return [
        *[Finding("error", message) for message in reading.errors],
        *[Finding("warning" if skip_broken else "error", message + left_out) for message in reading.broken],
        *[Finding("warning", message) for message in reading.warnings],
        *[Finding("note", message) for message in reading.notes],
    ]
