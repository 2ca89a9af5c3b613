"""A MONAI datalist whose labels are masks, as the Medical Segmentation Decathlon has them.

``{"training": [{"image": "a.nii.gz", "label": "a_seg.nii.gz"}, ...], "validation": [...], "test": [...]}``; an entry
may have ``patient``, ``site`` and ``fold``. ``test`` may be called ``testing``; its images without a label are counted
and not used. Paths are relative to the file. ``labels`` may name the classes by number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.plain import plain_problem
from medpfl.core.site_data import Part
from medpfl.data.files import composed, existing, is_nifti
from medpfl.data.kinds.folders.patient_pattern import patient_in
from medpfl.data.kinds.masks.pair import Layout, Pair
from medpfl.data.kinds.masks.pairs import is_image, stem, telling
from medpfl.data.kinds.masks.reading import Reading
from medpfl.data.kinds.scans.label_columns import NO_LABEL
from medpfl.data.kinds.scans.label_table import SECTIONS, read_json

NAMES = ("datalist.json", "dataset.json")
"""What a datalist in a folder is called."""


def is_datalist(path: Path) -> bool:
    """Whether a JSON file lists images with masks."""
    try:
        content = read_json(path)
    except UserError:
        return False
    listed = content.get("training") if isinstance(content, dict) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    return isinstance(first, dict) and isinstance(first.get("label"), str) and is_image(first["label"])


def _known(image: Path) -> str:
    """What an image is called: its file, or the folder of one that is called ``image``."""
    named = telling(image)
    return stem(image) if named == image else named.name


def _placed(image: str, known: str) -> str:
    """The same with the folders above it, where such are in several parts of a site: those are different patients'."""
    folder = PurePosixPath(image).parent
    return (folder if folder.name == known else folder / known).as_posix()


def read_datalist(path: Path, reading: Reading) -> Layout:
    """The pairs that a datalist names.

    With a list ``validation``, or entries of ``test`` or ``testing`` that have a mask, the parts are the file's; with
    ``reading.fold`` that fold of the training list tests and the others train. Else patients are divided.

    Raises:
        UserError: the file, a list's name or an entry is wrong; it is named.
    """
    content = read_json(path)
    entries, unlabelled = _entries(path, content)
    given = reading.fold is not None or any(part != "train" for _, part, _ in entries)
    if reading.fold is not None:
        entries = [(where, _of_fold(part, entry, reading.fold), entry) for where, part, entry in entries]
    own = path.parent.resolve().name
    parts: dict[tuple[str, str], set[Part]] = defaultdict(set)
    for _, part, entry in entries:
        parts[_said(entry, "site") or own, _known(path.parent / entry["image"])].add(part)
    centres: dict[str, list[Pair]] = {}
    seen: set[Path] = set()
    for where, part, entry in entries:
        image, mask = (existing(path.parent, entry[key]) for key in ("image", "label"))
        if image in seen:
            raise UserError(f"{where}: {entry['image']} is listed twice")
        seen.add(image)
        known = _known(image)
        centre = _said(entry, "site") or own
        whose = _said(entry, "patient")
        whose = "" if whose.lower() in NO_LABEL else whose  # as in a table: nobody is no patient of several images
        if not whose and reading.patient:
            whose = composed(patient_in(telling(image), reading.patient))
        patient = whose or (known if len(parts[centre, known]) == 1 else _placed(entry["image"], known))
        case = patient if whose and not is_nifti(image) else entry["image"]
        centres.setdefault(centre, []).append(
            Pair(centre, patient, case, entry["image"], image, mask, part if given else None, said=bool(whose))
        )
    every = [pair for pairs in centres.values() for pair in pairs]
    if not every:
        raise UserError(f"{path}: no entry of its lists has an image and a label")
    volumes = [is_nifti(pair.image) for pair in every]
    if any(volumes) and not all(volumes):
        raise UserError(f"{path}: some images are NIfTI volumes and others are pictures: make two lists of them")
    if reading.fold is not None and all(pair.split != "test" for pair in every):
        raise UserError(f"--data-arg fold={reading.fold}: {path} has no entry of that fold")
    return Layout(
        root=path,
        name=path.stem if path.name not in NAMES else path.parent.resolve().name,
        form="volumes" if all(volumes) else "pictures",
        centres={name: tuple(centres[name]) for name in sorted(centres)},
        classes=_classes(path, content.get("labels")),
        unlabelled=unlabelled,
    )


def _entries(path: Path, content: Any) -> tuple[list[tuple[str, Part, dict[str, Any]]], int]:
    """Where each entry with a mask is, its part and itself; and how many images of tests have no mask."""
    for key, listed in content.items():
        if key not in SECTIONS and isinstance(listed, list) and any(_has_mask(entry) for entry in listed):
            raise UserError(f"{path}: {key!r} lists images with masks: call it one of {', '.join(SECTIONS)}")
    found: list[tuple[str, Part, dict[str, Any]]] = []
    unlabelled = 0
    for key, part in SECTIONS.items():
        listed = content.get(key) or []
        if not isinstance(listed, list):
            raise UserError(f"{path}: {key}: a list of images with labels is needed")
        for number, entry in enumerate(listed):
            where = f"{path}: {key}[{number}]"
            if part == "test" and _is_unlabelled(entry):
                unlabelled += 1
                continue
            if not isinstance(entry, dict):
                raise UserError(f"{where}: image and label are needed")
            for name in ("image", "label"):
                if not isinstance(entry.get(name), str) or not is_image(entry[name]):
                    raise UserError(f"{where}: {name}: the path of one picture or NIfTI file is needed")
            found.append((where, part, entry))
    return found, unlabelled


def _has_mask(entry: Any) -> bool:
    return isinstance(entry, dict) and "image" in entry and is_image(str(entry.get("label")))


def _is_unlabelled(entry: Any) -> bool:
    """Whether it is an image alone: its path, as in the Decathlon, or as MONAI has it."""
    if isinstance(entry, dict):
        return "image" in entry and entry.get("label") in (None, "")
    return isinstance(entry, str)


def _of_fold(part: Part, entry: Mapping[str, Any], fold: int) -> Part:
    """The part of an entry where a fold of the training list tests; tables give its number as text, or as 0.0."""
    return "test" if part == "train" and _said(entry, "fold").removesuffix(".0") == str(fold) else part


def _said(entry: Mapping[str, Any], key: str) -> str:
    """What an entry says, empty where it does not; patients and sites may be numbered from 0.

    As in a table, blanks around it and how accents are written make no other patient.
    """
    value = entry.get(key)
    return "" if value is None else composed(str(value).strip())


def _classes(path: Path, labels: Any) -> tuple[str, ...]:
    """Of the Decathlon's ``{"0": "background", "1": "tumour"}``; UserError for names that no bundle can have."""
    if not isinstance(labels, dict) or len(labels) < 2:
        return ()
    names = [labels.get(str(number)) for number in range(len(labels))]
    if not all(isinstance(name, str) for name in names):
        return ()
    if problem := plain_problem(names, "labels"):
        raise UserError(f"{path}: {problem}")
    return tuple(names)
