"""Says in words whether a hospital's CT or MR volumes can be used, before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError, first_line
from medpfl.core.numbers_in_words import by, count
from medpfl.core.site_data import PARTS, Part
from medpfl.data.arguments import named_classes, read_arguments
from medpfl.data.finding import Finding, counted_once
from medpfl.data.kinds.scans.dicom_reader import SeriesReader
from medpfl.data.kinds.scans.geometry import INTERSPACED
from medpfl.data.kinds.scans.label_columns import several_labels
from medpfl.data.kinds.scans.limits import WHOLE_CHEST
from medpfl.data.kinds.scans.manifest import (
    MANIFEST,
    Manifest,
    find_manifest,
    open_manifest,
    require_classes,
    unused_folders,
)
from medpfl.data.kinds.scans.matching import Reading, examine, findings
from medpfl.data.kinds.scans.nifti import Volume, require_whole
from medpfl.data.kinds.scans.preprocessing import Modality, Preprocessing
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.kinds.scans.series import Progress, Series
from medpfl.data.kinds.scans.sharing import copies, shared
from medpfl.data.kinds.scans.values import fingerprint, odd_values
from medpfl.data.labels import counted, present
from medpfl.data.patients import count_people, no_validation, split_patients
from medpfl.data.uneven import of_a_site

_FRACTIONS = RunConfig.model_fields["fractions"].default
_SHARES = "/".join(f"{share:g}" for share in _FRACTIONS)
_ORDER = (
    "this order of the classes must be the job's: `medpfl data check PATH --data-arg classes=...` with the job's "
    "classes tells whether it is"
)
_DERIVED = (
    "this order of the classes is made of the labels, and the job's may differ: "
    "`medpfl data check PATH --data-arg classes=...` with the job's classes tells whether it does"
)
_LEAVING = (
    'no run begins while a scan cannot be used; with "skip_broken": true in a manifest.json, which names centres and '
    "classes, it does without those scans"
)
_MOST = 20
"""Problems of one level that are listed for a centre; the rest is counted."""


@dataclass(frozen=True)
class Checked:
    """What a check found, in words, and what it read of each centre; no manifest where there is none to be read."""

    findings: list[Finding]
    readings: dict[str, Reading]
    manifest: Manifest | None


def check_scans(path: str | Path, data_args: Mapping[str, Any], progress: Progress | None = None) -> Checked:
    """Reads all headers and a middle slice of every volume, and lists what was found; never raises for wrong data.

    Args:
        path: folder or manifest, or a name of one.
        data_args: the job's; the classes must be those that it names.
        progress: called with the number of a centre's DICOM files that are read and of all.

    Raises:
        UserError: an argument that scans do not have, or a wrong value of one.
    """
    asked = named_classes(data_args)
    modality = read_arguments(Preprocessing, data_args).modality
    try:
        found = find_manifest(str(path))
        manifest, unused = open_manifest(found, asked), unused_folders(found)
        require_classes(manifest, asked)
        kinds = "labels, several a scan" if several_labels(manifest.tables) else "classes"
    except UserError as error:
        return Checked([Finding("error", str(error))], {}, None)
    classes = ", ".join(manifest.classes)
    phantom = "synthetic volumes, not patients: " if manifest.phantom else ""
    report = [Finding("ok", f"{phantom}{manifest.name}, {count(len(manifest.centres), 'centre')}, {kinds}: {classes}")]
    if not asked:
        report.append(Finding("note", _ORDER if (manifest.root / MANIFEST).is_file() or found.is_file() else _DERIVED))
    report += [Finding("warning", message) for message in unused]
    readings: dict[str, Reading] = {}
    marked: list[tuple[Scan, str]] = []
    stopping = False
    for centre in manifest.centres:
        try:
            reading = readings[centre.name] = examine(manifest, centre.name, modality, progress)
        except UserError as error:
            report.append(Finding("error", f"{centre.name}: {error}"))
            continue
        report += [Finding("ok", f"{centre.name}: {line}") for line in _contents(manifest, reading, centre.name)]
        report += capped(findings(reading, manifest.skip_broken), centre.name)
        odd_scans, hashes = _values(reading.scans, manifest.skip_broken, modality)
        report += capped(odd_scans, centre.name)
        stopping |= bool(reading.broken) or any(one.level == "error" for one in odd_scans)
        marked += hashes
        odd = _odd(manifest, reading, modality) + _lacking(manifest, reading, centre.name)
        report += [Finding("warning", f"{centre.name}: {line}") for line in odd]
    if stopping and not manifest.skip_broken:
        report.append(Finding("note", _LEAVING))
    return Checked(report + _across(readings) + copies(marked, manifest.classes), readings, manifest)


def _contents(manifest: Manifest, reading: Reading, centre: str) -> list[str]:
    scans = reading.scans
    lines = [f"{count(count_people(scans), 'patient')}, {count(len(scans), 'scan')} that can be used"]
    if not scans:
        return lines
    lines.append(counted([scan.target for scan in scans], manifest.classes, "scan"))
    if any(scan.split for scan in scans):
        parts = Counter(scan.split for scan in scans)
        lines.append("split given: " + ", ".join(f"{part} {parts[part]:,}" for part in PARTS))
    elif drawn := _divided(reading, centre):
        sizes = ", ".join(f"{part} {count_people(drawn[part]):,}" for part in PARTS)
        lines.append(f"patients by the default split ({_SHARES}): {sizes}")
    lines.append(f"scans cover {_range(round(source.coverage) for source in reading.sources)} mm from bottom to top")
    series = [source for source in reading.sources if isinstance(source, Series)]
    volumes = [source for source in reading.sources if not isinstance(source, Series)]
    if series:
        files = [len(s.files) for s in series]
        thickness = [s.thickness for s in series if s.thickness]
        lines.append(
            f"DICOM: {_range(files)} slices, {_range(s.spacing[2] for s in series)} mm apart"
            + (f" and {_range(thickness)} mm thick" if thickness else "")
            + f"; pixels {_range(s.spacing[0] for s in series)} mm, {_names(by(s.matrix) for s in series)}"
        )
        lines.append(f"scanners: {_names(s.manufacturer for s in series)}; kernels: {_names(s.kernel for s in series)}")
    if volumes:
        lines.append(
            f"NIfTI: {_names(by(v.shape) for v in volumes)} voxels of {_range(v.spacing[0] for v in volumes)}, "
            f"{_range(v.spacing[1] for v in volumes)} and {_range(v.spacing[2] for v in volumes)} mm"
        )
    if reading.modalities:
        listed = ", ".join(f"{name} {count:,}" for name, count in sorted(reading.modalities.items()))
        lines.append(f"series of other modalities in the folder, not used: {listed}")
    if reading.ignored:
        lines.append(f"{count(reading.ignored, 'other file')} in the folder, not read")
    return lines


def _values(
    scans: Sequence[Scan], skip_broken: bool, modality: Modality
) -> tuple[list[Finding], list[tuple[Scan, str]]]:
    """Decodes a slice from the middle of each volume; what is odd about its values, and a hash of them."""
    found, marked = [], []
    for scan in scans:
        try:
            values = _middle(scan)
            odd = odd_values(values, modality)
            marked.append((scan, fingerprint(values, modality)))
        except UserError as error:
            odd = [Finding("error", str(error).removeprefix(f"{scan.place}: "))]
        found += [(scan.place, replace(f, message=f"{scan.place}: {f.message} (in its middle slice)")) for f in odd]
    told = counted_once(found)
    return [replace(f, level="warning") for f in told] if skip_broken else told, marked


def _middle(scan: Scan) -> np.ndarray:
    """A slice from the middle; of a compressed file all is read, for its checksum."""
    file = scan.files[len(scan.files) // 2]
    if scan.kind != "dicom":
        require_whole(file)
    try:
        if scan.kind == "dicom":
            reader = SeriesReader()
            return reader.get_data(reader.read(file))[0]
        proxy = nibabel.load(file).dataobj
        return np.asarray(proxy[:, :, proxy.shape[2] // 2])
    except UserError:
        raise
    except Exception as error:  # MONAI, nibabel, gzip and zlib raise errors of many kinds on damaged files.
        raise UserError(f"{file}: cannot be read: {first_line(error)}") from None


def _odd(manifest: Manifest, reading: Reading, modality: Modality) -> list[str]:
    scans = reading.scans
    holders = [[s for s in scans if i in present(s.target)] for i in range(len(manifest.classes))]
    lines = []
    if scans and (absent := [name for name, those in zip(manifest.classes, holders, strict=True) if not those]):
        lines.append(f"no scan of class {', '.join(absent)}")
    alone = len(scans) > 2 and count_people(scans) == 1
    single = [name for name, those in zip(manifest.classes, holders, strict=True) if count_people(those) == 1]
    if single and not alone:
        lines.append(f"only one patient of class {', '.join(single)}: cannot be in training and in test")
    low = WHOLE_CHEST if modality == "CT" else 0.0
    if short := [i for i, source in enumerate(reading.sources) if source.coverage < low]:
        lines.append(
            f"{count(len(short), 'scan')} of less than {WHOLE_CHEST:.0f} mm from bottom to top, not a whole chest: "
            f"{scans[short[0]].place} first, {reading.sources[short[0]].coverage:.0f} mm"
        )
    if apart := [scan for scan, source in zip(scans, reading.sources, strict=True) if _interspaced(source)]:
        lines.append(
            f"{count(len(apart), 'scan')} with gaps between thin slices, {apart[0].place} first: what is between them "
            "has not been imaged"
        )
    if alone:
        lines.append("all scans are of one patient: has PatientID been removed? the table can name the patients")
    return lines


def _interspaced(source: Series | Volume) -> bool:
    return isinstance(source, Series) and source.spacing[2] > INTERSPACED * (source.thickness or np.inf)


def _lacking(manifest: Manifest, reading: Reading, centre: str) -> list[str]:
    """What the parts lack, the table's or else those of the default split."""
    if not (parts := _divided(reading, centre)):
        return []
    by = "the table" if reading.scans[0].split else f"the default split ({_SHARES})"
    lines = []
    if not parts["test"]:
        lines.append(f"no patient for test by {by}")
    lines += no_validation(reading.scans, parts, centre, by)
    unseen = _present(reading.scans) - _present(parts["train"])
    if unseen:
        lines.append(f"no training scan of class {', '.join(manifest.classes[i] for i in sorted(unseen))} by {by}")
    if all(isinstance(scan.target, int) for scan in reading.scans):
        labels = {part: [label for _, label in {(s.patient, s.label) for s in parts[part]}] for part in PARTS}
        lines += of_a_site(labels, manifest.classes, by)
    return lines


def _present(scans: Iterable[Scan]) -> set[int]:
    return {label for scan in scans for label in present(scan.target)}


def _divided(reading: Reading, centre: str) -> dict[Part, list[Scan]]:
    try:
        return split_patients(reading.scans, _FRACTIONS, 1.0, 0, centre) if reading.scans else {}
    except UserError:  # A patient in two parts is an error of the table already.
        return {}


def _across(readings: dict[str, Reading]) -> list[Finding]:
    if not any(reading.scans for reading in readings.values()):
        return [Finding("error", "there is no scan that can be used")]
    return shared({centre: reading.scans for centre, reading in readings.items()})


def capped(listed: Sequence[Finding], centre: str) -> list[Finding]:
    """A centre's findings, of each level the first; the rest is counted."""
    kept = []
    for level in ("error", "warning", "note"):
        some = [f for f in listed if f.level == level]
        kept += [Finding(level, f"{centre}: {f.message}") for f in some[:_MOST]]
        if len(some) > _MOST:
            kept.append(Finding(level, f"{centre}: and {len(some) - _MOST:,} more like these"))
    return kept


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = (f"{value:.4g}" for value in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"


def _names(values: Iterable[str], most: int = 5) -> str:
    names = sorted({value or "not said" for value in values})
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
