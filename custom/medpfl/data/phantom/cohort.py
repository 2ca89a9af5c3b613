"""Makes the cohort: who is ill, the scans, and the tables beside them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.seeding import derive_seed
from medpfl.core.whole_file import write_bytes
from medpfl.data.phantom.anatomy import draw_patient
from medpfl.data.phantom.dicom import write_series
from medpfl.data.phantom.nifti import write_volume
from medpfl.data.phantom.scanner import scan
from medpfl.data.phantom.six_centres import CENTRES, Centre

CLASSES = ("no emphysema", "emphysema")
SMALLEST = 2 * len(CENTRES)
"""Patients needed so that each centre has both classes."""
MOST = 10**6
"""Beyond it is a slip of the hand; centres are filled one patient at a time."""
_README = """\
Chest CT series made by a computer: formulas and random numbers, no patient and no scanner. Any likeness is chance.
They are for rehearsing software. Nothing that is measured on them says anything about people.

manifest.json      what lies here; written last, so that a folder without it is not complete
centre-N/          one folder with DICOM files for each patient
centre-N/labels.csv   the class of each series
truth.csv          which part of the lung is emphysema, as the computer made it (0 to 1); not for training

Made by `medpfl data phantom DIR --patients {patients} --matrix {matrix} --seed {seed}`.
"""
_README_MASKS = """\
Chest CT volumes made by a computer: formulas and random numbers, no patient and no scanner. Any likeness is chance.
They are for rehearsing software. Nothing that is measured on them says anything about people.

centre-N/          for each patient a NIfTI volume in HU, PATIENT.nii.gz, and its mask, PATIENT_mask.nii.gz:
                   0 background, 1 lung without its vessels and airways, 2 emphysema in it
truth.csv          which part of the lung is emphysema, as the computer made it (0 to 1); written last, so that a folder
                   without it is not complete

Made by `medpfl data phantom DIR --masks --patients {patients} --matrix {matrix} --seed {seed}`.
"""

_UNFINISHED = ".unfinished"
"""Where scans are written before all are there: readers of folders pass hidden ones by."""

Progress = Callable[[int, int], None]
"""Called with the patients that are done and those to do in all."""


@dataclass(frozen=True)
class _Row:
    centre: Centre
    patient: str
    number: int
    label: int


def make_phantom(
    folder: Path,
    *,
    patients: int = 240,
    matrix: int = 128,
    seed: int = 0,
    masks: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Writes the cohort, as a whole or not at all; the same arguments give the same bytes.

    Args:
        folder: a new or empty folder.
        patients: in all centres together. Each centre has one patient of each class or more, and two or more if there
            are 24 patients.
        matrix: rows and columns of an image.
        seed: another seed, other patients.
        masks: as NIfTI volumes, each with a mask of lung (1) and emphysema (2), instead of DICOM series with a class;
            of the same patients and scans.
        progress: called after each patient.

    Returns:
        The path of ``manifest.json``, or with masks of ``truth.csv``; it is written last.

    Raises:
        UserError: the folder is not empty or cannot be written, or a number that makes no sense.
    """
    if patients < SMALLEST:
        raise UserError(f"--patients {patients}: {len(CENTRES)} centres with both classes need {SMALLEST} or more")
    if patients > MOST:
        raise UserError(f"--patients {patients}: {MOST:,} at most")
    if not 32 <= matrix <= 512:
        raise UserError(f"--matrix {matrix}: images have 32 to 512 rows and columns")
    folder = at_home(folder)
    try:
        there = folder.exists()
        if there and not (folder.is_dir() and not any(folder.iterdir())):
            raise UserError(f"{folder}: there is something already; name a new folder, or remove this one first")
        unfinished = folder / _UNFINISHED
        unfinished.mkdir(parents=True)
        try:
            last = _write(unfinished, patients, matrix, seed, masks, progress)
            for part in sorted(unfinished.iterdir(), key=lambda part: part == last):
                part.rename(folder / part.name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not there and not any(folder.iterdir()):
                folder.rmdir()
        return folder / last.name
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from None


def counts(patients: int, centres: Sequence[Centre] = CENTRES) -> list[tuple[int, int]]:
    """Patients without and with emphysema in each centre, by its size and prevalence."""
    least = 2 if patients >= 2 * SMALLEST else 1
    sizes = np.array([centre.size for centre in centres], float)
    totals = np.full(len(centres), 2 * least)
    while (left := patients - totals.sum()) > 0:
        # One at a time where most are missing, so that the least holds and the sum is exact.
        totals[np.argmax(sizes / sizes.sum() * patients - totals)] += min(left, 1)
    ill = [
        min(max(round(centre.prevalence * total), least), total - least)
        for centre, total in zip(centres, totals.tolist(), strict=True)
    ]
    return [(total - k, k) for total, k in zip(totals.tolist(), ill, strict=True)]


def draw_share(rng: np.random.Generator, label: int) -> float:
    """Which part of the lung is emphysema: 7 to 35 % in the ill, most of them mild, and 0 to 3 % in the others."""
    return float(0.07 + 0.28 * rng.beta(0.9, 2.0) if label else 0.03 * rng.beta(0.8, 1.6))


def _write(folder: Path, patients: int, matrix: int, seed: int, masks: bool, progress: Progress | None) -> Path:
    rows = _rows(patients, seed)
    for row in rows:
        place = folder / row.centre.name
        (place if masks else place / row.patient).mkdir(parents=True, exist_ok=masks)
    about = _README_MASKS if masks else _README
    write_bytes(folder / "README.txt", about.format(patients=patients, matrix=matrix, seed=seed).encode())

    def one(row: _Row) -> tuple[str, float]:
        who = (row.centre.name, str(row.number))
        rng = np.random.default_rng(derive_seed(seed, "phantom", *who, row.label, "patient"))
        patient = draw_patient(rng, draw_share(rng, row.label))
        noise = np.random.default_rng(derive_seed(seed, "phantom", *who, row.label, "scan"))
        image = scan(patient, row.centre, matrix, noise)
        if masks:
            return write_volume(folder / row.centre.name, image, row.centre, row.patient), image.emphysema
        unique = [*map(str, (seed, patients, matrix)), *who]
        series = write_series(folder / row.centre.name / row.patient, image, row.centre, row.patient, *unique)
        return series, image.emphysema

    written = []
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        for result in pool.map(one, rows):
            written.append(result)
            if progress:
                progress(len(written), len(rows))
    truth = []
    for row, (series, share) in zip(rows, written, strict=True):
        truth.append((row.centre.name, row.patient, series, CLASSES[row.label], f"{share:.4f}"))
    if masks:
        _write_csv(folder / "truth.csv", ("centre", "patient", "volume", "label", "emphysema_share"), truth)
        return folder / "truth.csv"
    for centre in CENTRES:
        labels = [(series, patient, label) for name, patient, series, label, _ in truth if name == centre.name]
        _write_csv(folder / centre.name / "labels.csv", ("series", "patient", "label"), labels)
    _write_csv(folder / "truth.csv", ("centre", "patient", "series", "label", "emphysema_share"), truth)
    write_bytes(folder / "manifest.json", (json.dumps(_manifest(), indent=1) + "\n").encode())
    return folder / "manifest.json"


def _rows(patients: int, seed: int) -> list[_Row]:
    rows = []
    for k, (centre, (well, ill)) in enumerate(zip(CENTRES, counts(patients), strict=True), start=1):
        rng = np.random.default_rng(derive_seed(seed, "phantom", centre.name, "labels", patients))
        labels = rng.permutation([0] * well + [1] * ill).tolist()
        rows += [_Row(centre, f"PHANTOM-{k}-{n:04d}", n, label) for n, label in enumerate(labels, start=1)]
    return rows


def _manifest() -> dict:
    return {
        "schema": 1,
        "name": "phantom-ct",
        "phantom": True,
        "classes": list(CLASSES),
        "skip_broken": False,
        "centres": [
            {
                "name": centre.name,
                "kind": "dicom",
                "folder": centre.name,
                "labels": f"{centre.name}/labels.csv",
                "description": centre.description,
            }
            for centre in CENTRES
        ],
    }


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    write_bytes(path, text.getvalue().encode())
