"""Makes NIfTI volumes with masks of DICOM series and the structures that are drawn on them."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from secrets import token_hex

import nibabel
import numpy as np

from medpfl.core.errors import UserError, first_line
from medpfl.core.numbers_in_words import count
from medpfl.core.quiet import quiet
from medpfl.core.whole_file import write_bytes
from medpfl.data.files import composed, files_below
from medpfl.data.kinds.scans.dicom_reader import SeriesReader
from medpfl.data.kinds.scans.series import Progress, Series, read_files
from medpfl.data.structures.contours import contours_mask
from medpfl.data.structures.grid import Grid
from medpfl.data.structures.objects import KINDS, MALFORMED, RTSTRUCT, Drawn, instance, read_drawn, whole
from medpfl.data.structures.segmentation import segments_mask

_MOST = 255
"""Classes beside the background: masks are uint8."""


@dataclass(frozen=True)
class Class:
    """A class of the masks.

    Attributes:
        name: what it is called.
        patterns: what its structures are called, in lower case; ``*``, ``?`` and ``[...]`` as in file names.
    """

    name: str
    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Class:
        """Reads ``CLASS=NAME,NAME``; UserError if it is none."""
        name, equals, patterns = text.partition("=")
        told = tuple(filter(None, (composed(pattern.strip().lower()) for pattern in patterns.split(","))))
        if not equals or not name.strip() or not told:
            raise UserError(f"--structure {text!r}: give CLASS=NAME,NAME, e.g. tumour=GTV*,gtv-1")
        return cls(name.strip(), told)

    def has(self, structure: str) -> bool:
        """Whether a structure of this name is one of its."""
        return any(fnmatchcase(structure.lower(), pattern) for pattern in self.patterns)


@dataclass(frozen=True)
class Cohort:
    """What there is in a folder.

    Attributes:
        series: that make volumes, by SeriesInstanceUID.
        drawn: objects with structures, by the series that they are drawn on.
        wrong: why others cannot be used, in words that begin with the file.
    """

    series: Mapping[str, Series]
    drawn: Mapping[str, Sequence[Drawn]]
    wrong: Sequence[str]

    def names(self) -> Counter[str]:
        """Of how many series there is a structure of each name."""
        return Counter(
            name for objects in self.drawn.values() for name in {n for d in objects for n in d.structures.values()}
        )


@dataclass
class Made:
    """What was written.

    Attributes:
        volumes: how many.
        left_out: of which series nothing was, and why, in words that begin with its folder.
        odd: what is worth a look, likewise.
    """

    volumes: int = 0
    left_out: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def find(root: Path, progress: Progress | None = None) -> Cohort:
    """Reads the headers of all files in a folder and below.

    Args:
        root: the folder.
        progress: called with the number of files that are read and of all.

    Raises:
        UserError: there is no such folder, or nothing is drawn in it.
    """
    files = files_below(root)
    objects, wrong, rest = [], [], []
    for path in files:
        try:
            found = read_drawn(path)
        except UserError as error:
            wrong.append(str(error))
            continue
        (objects if found else rest).append(found or path)
    folder = read_files(rest, progress)
    wrong += [
        f"{file.path}: {file.reason}: export it again as a DICOM file (Part 10)"
        for file in folder.rest
        if file.sop_class == RTSTRUCT
    ]
    usable = {uid: series for uid, series in folder.series.items() if series.usable}
    drawn: dict[str, list[Drawn]] = {}
    for one in _with_series(objects, folder.series):
        if why := _unusable(one, folder.series):
            wrong.append(f"{one.path}: {why}")
        else:
            drawn.setdefault(one.series, []).append(one)
    if not objects and not wrong:
        raise UserError(f"{root}: no DICOM RT structure set and no segmentation in it")
    return Cohort(usable, drawn, wrong)


def _with_series(objects: Sequence[Drawn], series: Mapping[str, Series]) -> Sequence[Drawn]:
    """The objects, with the series of the images that they name where they do not say it themselves."""
    if not any(one.images for one in objects):
        return objects
    where = {instance(path): uid for uid, one in series.items() for path in one.files}
    of = {one.path: {where.get(image, "") for image in one.images} for one in objects}
    return [replace(one, series=next(iter(of[one.path]))) if len(of[one.path]) == 1 else one for one in objects]


def _unusable(one: Drawn, series: Mapping[str, Series]) -> str:
    if not one.structures:
        return f"a {one.kind} without structures"
    if not one.series:
        return f"a {one.kind} that does not say which series it is drawn on, or names several"
    if (of := series.get(one.series)) is None:
        return f"the series that this {one.kind} is drawn on is not there ({one.series})"
    if not of.usable:
        return next(problem.message for problem in of.problems if problem.level == "error")
    if one.patient and of.patient and one.patient != of.patient:
        return f"drawn on a series of another patient, {of.folder}"
    return ""


def convert(cohort: Cohort, out: Path, classes: Sequence[Class], progress: Progress | None = None) -> Made:
    """Writes ``OUT/images/PATIENT/SERIES.nii.gz`` and ``OUT/masks/...`` for each series on which every class is drawn.

    A mask's values are the classes' places from 1 on; where two overlap the later one stands.

    Args:
        cohort: what there is.
        out: a new or empty folder; it has all volumes or none.
        classes: of the masks.
        progress: called with the number of series that are done and of all.

    Raises:
        UserError: the folder has something in it, or there is no series on which all classes are drawn.
        OSError: it cannot be written.
    """
    if not 0 < len(classes) <= _MOST or len({one.name for one in classes}) < len(classes):
        raise UserError(f"--structure: give 1 to {_MOST} classes of different names")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: has something in it; give a new or empty folder")
    # An empty folder stays: it may be a link, the current folder or a volume that is mounted.
    made, temporary = Made(), (out if out.exists() else out.parent) / f".{out.name}.{os.getpid()}-{token_hex(4)}.tmp"
    try:
        for number, (uid, name) in enumerate(_names(cohort), start=1):
            series = cohort.series[uid]
            try:
                mask, odd = _mask(series, cohort.drawn[uid], classes)
                _write(temporary, name, series, mask)
            except UserError as error:
                made.left_out.append(f"{series.folder}: {error}")
            else:
                made.volumes += 1
                made.odd += [f"{series.folder}: {words}" for words in odd]
            if progress:
                progress(number, len(cohort.drawn))
        if not made.volumes:
            why = f": {made.left_out[0]}" if made.left_out else ""
            raise UserError(f"no series has {', '.join(one.name for one in classes)} drawn on it{why}")
        _put(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return made


def _put(made: Path, out: Path) -> None:
    """Gives a folder its name, or an empty one its content: all of it or, after an error, nothing."""
    if not out.exists():
        made.replace(out)
        return
    put = [out / kind for kind in ("masks", "images")]
    try:
        for place in put:
            (made / place.name).replace(place)
    except BaseException:  # an interrupt too
        for place in put:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _names(cohort: Cohort) -> Iterator[tuple[str, Path]]:
    """By series what its files are called: in the patient's folder, by the number among the patient's own."""
    patients: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for uid in sorted(cohort.drawn, key=lambda uid: (cohort.series[uid].patient, str(cohort.series[uid].folder), uid)):
        series = cohort.series[uid]
        whose = series.patient or f"folder {series.folder}"
        if whose not in patients:
            plain = re.sub(r"[^A-Za-z0-9_-]+", "_", series.patient or series.folder.name).strip("_") or "patient"
            taken = {name.lower() for name in patients.values()}
            same = (f"{plain}_{n}" for n in range(2, len(patients) + 3))
            patients[whose] = plain if plain.lower() not in taken else next(n for n in same if n.lower() not in taken)
        numbers[whose] += 1
        yield uid, Path(patients[whose], f"series_{numbers[whose]}.nii.gz")


def _mask(series: Series, drawn: Sequence[Drawn], classes: Sequence[Class]) -> tuple[np.ndarray, list[str]]:
    """(slices, rows, columns) uint8, and what is odd."""
    grid, odd = Grid.of(series), []
    mask = np.zeros(grid.shape, dtype=np.uint8)
    for value, one in enumerate(classes, start=1):
        numbers = {d.path: {n for n, name in d.structures.items() if one.has(name)} for d in drawn}
        where = [d for d in drawn if numbers[d.path]]
        if not where:
            there = sorted({name for d in drawn for name in d.structures.values()})
            raise UserError(
                f"nothing is drawn on it that is called {' or '.join(one.patterns)}: it has {', '.join(there)}"
            )
        named = [Counter(d.structures[n].lower() for n in numbers[d.path]) for d in where]
        twice = Counter(name for names in named for name in names)
        if name := next((name for name, times in twice.items() if times > 1), ""):
            files = ", ".join(f"{d.path.name}{f' of {d.date}' if d.date else ''}" for d in where)
            raise UserError(f"{name!r} is drawn on it more than once ({files}): take away what does not count")
        odd += [
            f"{n} structures are called {name!r}: taken as one" for one in named for name, n in one.items() if n > 1
        ]
        found = np.zeros(grid.shape, dtype=bool)
        for d in where:
            try:
                found |= _of(d, numbers[d.path], grid, odd)
            except UserError as error:
                raise UserError(f"{d.path.name}: {error}") from None
        if over := int(((mask > 0) & found).sum()):
            odd.append(f"{one.name} covers {count(over, 'voxel')} of {', '.join(c.name for c in classes[: value - 1])}")
        mask[found] = value
        if not found.any():
            raise UserError(f"{one.name}: what is drawn has no voxel's centre in it")
    return mask, odd


def _of(drawn: Drawn, numbers: set[int], grid: Grid, odd: list[str]) -> np.ndarray:
    dataset = whole(drawn.path)
    try:
        with quiet():
            if drawn.kind != KINDS[RTSTRUCT]:
                return segments_mask(dataset, numbers, grid)
            mask, told = contours_mask(dataset, numbers, grid)
    except MALFORMED as error:
        raise UserError(f"a {drawn.kind} that is not as DICOM has it: {first_line(error)}") from None
    odd += told
    return mask


def _write(folder: Path, name: Path, series: Series, mask: np.ndarray) -> None:
    reader = SeriesReader() if series.modality == "CT" else SeriesReader(padding=0.0)
    values, meta = reader.get_data(reader.read([str(path) for path in series.files]))
    # The reader has columns, rows, slices, as NIfTI does.
    for kind, array in (("images", np.asarray(values, dtype=np.float32)), ("masks", mask.transpose(2, 1, 0))):
        image = nibabel.Nifti1Image(array, np.asarray(meta["affine"], dtype=np.float64))
        image.header.set_xyzt_units("mm")
        file = folder / kind / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, gzip.compress(image.to_bytes(), 1, mtime=0), durable=False)
