"""Which centres, classes and patients a folder of pictures has, from its files' names alone.

``FOLDER/CENTRE/CLASS/.../picture.png``; or, at a hospital, ``FOLDER/CLASS/.../picture.png``. Or a table says it
(:mod:`medpfl.data.kinds.folders.table`). Of DICOM X-ray images the header says whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.plain import plain_problem
from medpfl.core.site_data import Part
from medpfl.data.files import (
    PICTURES,
    composed,
    files_below,
    holds_pictures,
    is_hidden,
    unread_pictures,
)
from medpfl.data.kinds.folders.patient_pattern import patient_in
from medpfl.data.kinds.folders.table import misnamed, read_tables, tables
from medpfl.data.kinds.folders.xray import holds_xrays, is_dicom, person
from medpfl.data.kinds.scans.label_columns import several_labels
from medpfl.data.labels import Target, counts, strata
from medpfl.data.part_words import PART_WORDS
from medpfl.data.patient_ids import named_as_others, two_names
from medpfl.data.places import is_path, looked_in, places


@dataclass(frozen=True)
class Picture:
    """A labelled image file.

    Attributes:
        centre: name of the centre's folder.
        patient: what the file's name says, or ``id``; stays at the site.
        label: index of the class; of several labels the rarest, by which pictures are divided, or their number if none.
        id: path relative to the centre's folder.
        file: where it is.
        split: the part that a table gives.
        labels: of several, for each class 1 if it is there, 0 if not, -1 if that is not known; None of one class.
    """

    centre: str
    patient: str
    label: int
    id: str
    file: Path
    split: Part | None = None
    labels: tuple[int, ...] | None = None

    @property
    def target(self) -> Target:
        """What a network learns of it."""
        return self.label if self.labels is None else self.labels


@dataclass(frozen=True)
class Layout:
    """What a folder holds.

    Attributes:
        root: the folder.
        classes: class names; a label is the index.
        centres: pictures of each centre, by path; centres by name.
        unused: sub-folders without a picture where others are classes, relative to ``root``.
        people: patients are known, if not of every picture.
        unread: what else is there and is not read, and PatientIDs that a table has under several names, in words.
        several: a picture has any number of labels.
    """

    root: Path
    classes: tuple[str, ...]
    centres: Mapping[str, tuple[Picture, ...]]
    unused: tuple[str, ...]
    people: bool = False
    unread: tuple[str, ...] = ()
    several: bool = False

    def counts(self, pictures: Iterable[Picture]) -> list[int]:
        """How many of some pictures each class has."""
        return counts([picture.target for picture in pictures], len(self.classes))


def find_folder(data: str) -> Path:
    """The folder of pictures that a ``--data`` value names; UserError if there is none."""
    if there := [place for place in places(data) if place.is_dir()]:
        return next(filter(is_picture_folder, there), there[0])
    looked = "" if is_path(data) else f": no folder of that name in {looked_in()}"
    raise UserError(f"image folder {data!r} is not on this machine{looked}")


def is_picture_folder(folder: Path) -> bool:
    """Whether pictures with a table are in a folder, or pictures or DICOM X-ray images and nothing else like scans."""
    return bool(tables(folder)) or holds_pictures(folder) or holds_xrays(folder)


def read_layout(root: Path, classes: Sequence[str] = (), patient: str = "") -> Layout:
    """Finds the pictures of a folder; none is opened, but the headers of DICOM files are read.

    Where tables are (:func:`medpfl.data.kinds.folders.table.tables`), they say what there is.

    The sub-folders are classes, and the folder is one centre, if pictures lie directly in them or if all are called
    like ``classes``; otherwise they are centres, whose sub-folders are classes. Below a class folder, pictures may lie
    in further folders. Hidden files and files that are no pictures do not count.

    Args:
        root: the folder.
        classes: their names in the order of the labels; by default all class folders, sorted (as numbers if they are).
        patient: RE2's regular expression whose first group, found in a file's name, is the patient; by default every
            picture is its own.

    Raises:
        UserError: no classes or centres can be made of it; the message names the folder or the file.
    """
    if table := misnamed(root):
        raise UserError(f"{table}: call it {table.name.lower()}, so that it is read")
    if found := tables(root):
        return _by_tables(root, found, classes, patient)
    files, people, without = _pictures(root)
    unread = _in_words(without, people)
    paths = [file.relative_to(root) for file in files]
    if not paths:
        unread = unread_pictures(files_below(root))
        raise UserError(f"{root}: no picture is in it ({', '.join(PICTURES)})" + (f"; {unread}" if unread else ""))
    if stray := next((path for path in paths if len(path.parts) == 1), None):
        raise UserError(f"{root}: {stray} lies in no class folder: a picture's class is the name of its folder")
    one = _is_one_centre(root, paths, classes)
    depth = 0 if one else 1
    if stray := next((path for path in paths if len(path.parts) < depth + 2), None):
        raise UserError(f"{root}: {stray} lies beside the class folders of {stray.parts[0]}: move it into one of them")
    names = _class_names(root, paths, depth, classes)
    labels = {name: label for label, name in enumerate(names)}
    centres: dict[str, list[Picture]] = {}
    for path in paths:
        centre = root.resolve().name if one else path.parts[0]
        known = path if one else path.relative_to(centre)
        person = patient_in(root / path, patient) if patient else people.get(root / path) or known.as_posix()
        picture = Picture(centre, composed(person), labels[composed(path.parts[depth])], known.as_posix(), root / path)
        centres.setdefault(centre, []).append(picture)
    empty = _empty(root, {path.parts[0] for path in paths})
    if empty and not one:
        raise UserError(
            f"{root}: {empty[0]}: no picture is in it, and every sub-folder is a centre: "
            "fill it or take it out of the folder"
        )
    if not one:
        empty = [f"{name}/{inside}" for name in centres for inside in _empty(root / name, _folders(paths, name))]
    inside = {name: tuple(centres[name]) for name in sorted(centres)}
    return Layout(root, names, inside, tuple(empty), bool(patient) or any(people.values()), unread)


def _pictures(root: Path) -> tuple[list[Path], dict[Path, str], list[Path]]:
    """The pictures, the patients of those that are DICOM (empty where it does not say), and DICOM without an image."""
    pictures, people, without = [], {}, []
    for file in files_below(root):
        if file.suffix.lower() in PICTURES:
            pictures.append(file)
        elif is_dicom(file):
            if (found := person(file)) is None:
                without.append(file)
            else:
                pictures.append(file)
                people[file] = found
    return pictures, people, without


def _in_words(without: Sequence[Path], people: Mapping[Path, str]) -> tuple[str, ...]:
    """What of DICOM files is not read, or says no patient."""
    nameless = [file for file, found in people.items() if not found]
    words = []
    if without:
        words.append(f"{len(without):,} DICOM files have no image and are not read, {without[0]} first")
    if nameless and len(nameless) < len(people):
        words.append(
            f"{len(nameless):,} DICOM images say no PatientID and count as patients of their own, {nameless[0]} first"
        )
    return tuple(words)


def _by_tables(root: Path, found: dict[str, Path], classes: Sequence[str], patient: str) -> Layout:
    several = several_labels(found.values())
    names, labelled = read_tables(root, found, classes)
    if problem := plain_problem(names, "classes"):
        raise UserError(f"{root}: {problem}")
    files, people, without = _pictures(root)
    centres, known, twice = {}, bool(patient), []
    for centre, rows in labelled.items():
        folder, pictures, ids = found[centre].parent, [], []
        for (file, target, row), stratum in zip(rows, strata([of for _, of, _ in rows], len(names)), strict=True):
            ids.append("" if patient else _patient_id(file, people))
            said = row.patient or (patient_in(file, patient) if patient else ids[-1])
            known = known or bool(said)
            ident = file.relative_to(folder).as_posix()
            labels = None if isinstance(target, int) else target
            pictures.append(Picture(centre, composed(said or ident), stratum, ident, file, row.split, labels))
        pictures = named_as_others(pictures, ids, [bool(row.patient) for *_, row in rows])
        twice += two_names(pictures, ids, [row.where for *_, row in rows])
        centres[centre] = tuple(sorted(pictures, key=lambda picture: picture.id))
    used = {
        picture.file: "" if picture.patient == picture.id else picture.patient for picture in chain(*centres.values())
    }
    unread = (*_in_words(without, {file: whose for file, whose in used.items() if file in people}), *twice)
    if rest := [file for file in files if file not in used]:
        images = "pictures and DICOM images are" if any(file in people for file in rest) else "pictures are"
        unread = (*unread, f"{len(rest):,} {images} in no row of a table and are not read, {rest[0]} first")
    return Layout(root, names, centres, (), known, unread, several)


def _patient_id(file: Path, people: Mapping[Path, str]) -> str:
    """Of a DICOM file, whatever its name ends with; empty of others, and where it does not say."""
    return people[file] if file in people else (is_dicom(file) and person(file)) or ""


def _is_one_centre(root: Path, paths: Sequence[Path], classes: Sequence[str]) -> bool:
    """Whether the sub-folders are classes, not centres."""
    if classes and {composed(path.parts[0]) for path in paths} <= set(classes):
        return True
    if classes and {composed(path.parts[1]) for path in paths if len(path.parts) > 2} & set(classes):
        return False
    direct = next((path for path in paths if len(path.parts) == 2), None)
    deeper = next((path for path in paths if len(path.parts) > 2), None)
    if direct and deeper:
        raise UserError(
            f"{root}: {direct} lies directly in a sub-folder, {deeper} one deeper: are the sub-folders classes or "
            f"centres? If centres, move {direct} into one of the class folders of {direct.parts[0]}; if classes, name "
            "them with --data-arg classes"
        )
    return direct is not None


def _class_names(root: Path, paths: Sequence[Path], depth: int, named: Sequence[str]) -> tuple[str, ...]:
    where = {composed(path.parts[depth]): Path(*path.parts[: depth + 1]) for path in reversed(paths)}
    for level in range(depth + 1):
        folders = {path.parts[level] for path in paths}
        if len(folders) > 1 and {name.lower() for name in folders} <= set(PART_WORDS):
            raise UserError(
                f"{root}: {', '.join(sorted(folders))} are parts, not {'classes' if level == depth else 'centres'}: "
                "put a class's pictures of all parts into one folder; --fractions divides them"
            )
    if named:
        if unknown := next((name for name in where if name not in named), None):
            raise UserError(f"{root / where[unknown]}: {unknown!r} is none of the classes {', '.join(named)}")
        return tuple(named)
    _refuse_alike(root, where)
    if len(where) < 2:
        raise UserError(
            f"{root}: {next(iter(where))!r} is the only class folder; two are needed, in {root} itself or in the "
            "folder of each centre, or --data-arg classes that names those that are not here"
        )
    if depth:
        _refuse_unlike(root, paths)
    numbers = all(name.isascii() and name.isdecimal() for name in where)
    classes = tuple(sorted(where, key=(lambda name: (int(name), name)) if numbers else None))
    if problem := plain_problem(classes, "classes"):
        raise UserError(f"{root}: {problem}")
    return classes


def _refuse_alike(root: Path, where: Mapping[str, Path]) -> None:
    alike: dict[str, str] = {}
    for name in sorted(where):
        first = alike.setdefault("".join(name.casefold().split()), name)
        if first != name:
            raise UserError(
                f"{root}: the class folders {where[first]} and {where[name]} differ in case or spaces alone: "
                "call them the same"
            )


def _refuse_unlike(root: Path, paths: Iterable[Path]) -> None:
    """Centres without a class in common are more likely classes, and their classes patients."""
    centres: dict[str, set[str]] = {}
    for path in paths:
        centres.setdefault(path.parts[0], set()).add(composed(path.parts[1]))
    classes = [name for names in centres.values() for name in names]
    if len(centres) > 1 and len(set(classes)) == len(classes):
        raise UserError(
            f"{root}: no class folder is in two of the centres {', '.join(sorted(centres))}: if these are classes, or "
            "if it is meant, name the classes with --data-arg classes"
        )


def _folders(paths: Iterable[Path], centre: str) -> set[str]:
    return {path.parts[1] for path in paths if path.parts[0] == centre}


def _empty(folder: Path, used: set[str]) -> list[str]:
    """Names of sub-folders that are not hidden and not in ``used``."""
    inside = (path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
    return sorted(path.name for path in inside if path.name not in used)
