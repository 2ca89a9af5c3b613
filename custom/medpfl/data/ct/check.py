"""Says in words whether a hospital's CT volumes can be used, before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import nibabel
import numpy as np

from medpfl.data.check import Finding
from medpfl.data.ct.centre import Reading, examine, findings
from medpfl.data.ct.manifest import Manifest, find_manifest, open_manifest
from medpfl.data.ct.reader import SeriesReader
from medpfl.data.ct.scan import Scan
from medpfl.data.ct.series import Series
from medpfl.data.split import PARTS
from medpfl.errors import UserError

_MOST = 20
"""Problems of one level that are listed for a centre; the rest is counted."""


def check_ct(path: str | Path) -> list[Finding]:
    """Reads all headers and a middle slice of every volume, and lists what was found; never raises for wrong data."""
    try:
        manifest = open_manifest(find_manifest(str(path)))
    except UserError as error:
        return [Finding("error", str(error))]
    classes = ", ".join(manifest.classes)
    phantom = "synthetic volumes, not patients: " if manifest.phantom else ""
    report = [Finding("ok", f"{phantom}{manifest.name}, {_count(len(manifest.centres), 'centre')}, classes: {classes}")]
    readings: dict[str, Reading] = {}
    for centre in manifest.centres:
        try:
            reading = readings[centre.name] = examine(manifest, centre.name)
        except UserError as error:
            report.append(Finding("error", f"{centre.name}: {error}"))
            continue
        report += [Finding("ok", f"{centre.name}: {line}") for line in _contents(manifest, reading)]
        report += _capped(findings(reading, manifest.skip_broken), centre.name)
        report += _capped(_values(reading.scans, manifest.skip_broken), centre.name)
        report += [Finding("warning", f"{centre.name}: {line}") for line in _odd(manifest, reading)]
    return report + _across(readings)


def _contents(manifest: Manifest, reading: Reading) -> list[str]:
    scans = reading.scans
    patients = len({scan.patient for scan in scans})
    lines = [f"{_count(patients, 'patient')}, {_count(len(scans), 'scan')} that can be used"]
    if not scans:
        return lines
    counts = Counter(scan.label for scan in scans)
    lines.append(", ".join(f"{name} {counts[i]:,}" for i, name in enumerate(manifest.classes)))
    if any(scan.split for scan in scans):
        parts = Counter(scan.split for scan in scans)
        lines.append("split given: " + ", ".join(f"{part} {parts[part]:,}" for part in PARTS))
    series = [source for source in reading.sources if isinstance(source, Series)]
    volumes = [source for source in reading.sources if not isinstance(source, Series)]
    if series:
        files = [len(s.files) for s in series]
        thickness = [s.thickness for s in series if s.thickness]
        lines.append(
            f"DICOM: {_range(files)} slices, {_range(s.spacing[2] for s in series)} mm apart"
            + (f" and {_range(thickness)} mm thick" if thickness else "")
            + f"; pixels {_range(s.spacing[0] for s in series)} mm, {_names(_by(s.matrix) for s in series)}"
        )
        lines.append(f"scanners: {_names(s.manufacturer for s in series)}; kernels: {_names(s.kernel for s in series)}")
    if volumes:
        lines.append(
            f"NIfTI: {_names(_by(v.shape) for v in volumes)} voxels of {_range(v.spacing[0] for v in volumes)}, "
            f"{_range(v.spacing[1] for v in volumes)} and {_range(v.spacing[2] for v in volumes)} mm"
        )
    if reading.ignored:
        lines.append(f"{_count(reading.ignored, 'other file')} in the folder, not read")
    return lines


def _values(scans: Sequence[Scan], skip_broken: bool) -> list[Finding]:
    """Decodes a slice from the middle of each volume, and looks whether its values can be HU."""
    found = []
    for scan in scans:
        name = scan.files[0] if scan.kind == "nifti" else scan.files[0].parent
        try:
            values = _middle(scan)
        except UserError as error:
            found.append(Finding("warning" if skip_broken else "error", str(error)))
            continue
        low, high = float(values.min()), float(values.max())
        if low > -900:
            message = f"no value below -900 in its middle slice, {low:.0f} to {high:.0f}: no air? are these HU?"
            found.append(Finding("warning", f"{name}: {message}"))
        elif high < 0:
            message = f"no value above 0 in its middle slice, {low:.0f} to {high:.0f}: no soft tissue? are these HU?"
            found.append(Finding("warning", f"{name}: {message}"))
    return found


def _middle(scan: Scan) -> np.ndarray:
    file = scan.files[len(scan.files) // 2]
    if scan.kind == "dicom":
        reader = SeriesReader()
        return reader.get_data(reader.read(file))[0]
    try:
        proxy = nibabel.load(file).dataobj
        return np.asarray(proxy[:, :, proxy.shape[2] // 2])
    except Exception as error:  # nibabel, gzip and zlib raise errors of many kinds on damaged files.
        raise UserError(f"{file}: cannot be read: {(str(error).splitlines() or [''])[0]}") from None


def _odd(manifest: Manifest, reading: Reading) -> list[str]:
    scans = reading.scans
    there = {scan.label for scan in scans}
    lines = []
    if scans and (absent := [name for i, name in enumerate(manifest.classes) if i not in there]):
        lines.append(f"no scan of class {', '.join(absent)}")
    if len(scans) > 2 and len({scan.patient for scan in scans}) == 1:
        lines.append("all scans are of one patient: has PatientID been removed? the table can name the patients")
    return lines


def _across(readings: dict[str, Reading]) -> list[Finding]:
    if not any(reading.scans for reading in readings.values()):
        return [Finding("error", "there is no scan that can be used")]
    series = Counter(scan.id for reading in readings.values() for scan in reading.scans if scan.kind == "dicom")
    if twice := [uid for uid, count in series.items() if count > 1]:
        return [Finding("warning", f"{_count(len(twice), 'series')} in more than one centre, {twice[0]} first")]
    return []


def _capped(listed: Sequence[Finding], centre: str) -> list[Finding]:
    kept = []
    for level in ("error", "warning"):
        some = [f for f in listed if f.level == level]
        kept += [Finding(level, f"{centre}: {f.message}") for f in some[:_MOST]]
        if len(some) > _MOST:
            kept.append(Finding(level, f"{centre}: and {len(some) - _MOST:,} more like these"))
    return kept


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("s" if number != 1 and not noun.endswith("s") else "")


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = (f"{value:.4g}" for value in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"


def _names(values: Iterable[str], most: int = 5) -> str:
    names = sorted({value or "not said" for value in values})
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _by(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))
