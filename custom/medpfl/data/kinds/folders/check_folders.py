"""Says in words whether folders of pictures can be used, before any training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.site_data import PARTS
from medpfl.data.arguments import named_classes, read_arguments
from medpfl.data.files import PICTURES, files_below, unread_pictures
from medpfl.data.finding import Finding
from medpfl.data.kinds.folders.layout import Layout, Picture, find_folder, read_layout
from medpfl.data.kinds.folders.patient_pattern import all_of_one, keeping_together, level_of_one
from medpfl.data.kinds.folders.picture_file import (
    DARK,
    FAINT,
    TOO_DARK,
    Reading,
    faint,
    of_one_colour,
    picture_size,
    read_picture,
)
from medpfl.data.kinds.folders.repeats import repeated
from medpfl.data.kinds.folders.table import tables
from medpfl.data.kinds.folders.train_counts import FolderReading
from medpfl.data.kinds.scans.label_table import PICTURE
from medpfl.data.kinds.scans.unread_columns import unread_columns
from medpfl.data.labels import counted
from medpfl.data.patients import count_people, in_numbers, no_validation, split_patients
from medpfl.data.people import people
from medpfl.data.uneven import of_a_site

_FRACTIONS = RunConfig.model_fields["fractions"].default
_ORDER = (
    "this order of the classes is that of the sorted names (of folders, or a table's), and the job's may differ: "
    "`medpfl data check PATH --data-arg classes=...` with the job's classes tells whether it does"
)
_PATIENTS = "each picture counts as its own patient, so pictures of one patient can be in training and in test"
_ONE_PATIENT = "all pictures are of one patient: has PatientID been removed? a table can name the patients"
_MOST = 20
"""Broken pictures that are listed for a centre; the rest is counted."""

Seen = tuple[tuple[int, int], bool, int, str] | str
"""Width and height of a picture, whether all its pixels are alike, the highest, and that they are too low for the bits
of its file, in words; or why it cannot be read."""


def check_folders(data: str, data_args: Mapping[str, Any]) -> list[Finding]:
    """Reads every picture and lists what was found; never raises for wrong data.

    Args:
        data: the folder, or a name of one.
        data_args: the job's: ``classes`` and those of :class:`~medpfl.data.kinds.folders.picture_file.Reading`.

    Raises:
        UserError: an argument that pictures do not have, or a wrong value of one.
    """
    asked, reading = named_classes(data_args), read_arguments(FolderReading, data_args)
    try:
        layout = read_layout(find_folder(data), asked, reading.patient)
    except UserError as error:
        return [Finding("error", str(error))]
    number, kinds = len(layout.centres), "labels, several a picture" if layout.several else "classes"
    head = f"{layout.root.resolve().name}, {count(number, 'centre')}, {kinds}: {', '.join(layout.classes)}"
    report = [Finding("ok", head), *(Finding("warning", f"{name}: no picture in it") for name in layout.unused)]
    if not asked:
        report.append(Finding("note", _ORDER))
    report += [Finding("warning", words) for words in layout.unread]
    labelled = tables(layout.root)
    report += [finding for table in labelled.values() for finding in unread_columns(table, PICTURE)]
    if not layout.people:
        files = [[picture.file for picture in pictures] for pictures in layout.centres.values()]
        known = "(in a job, the job says it), as do a table's column patient and a DICOM file's PatientID"
        report.append(Finding("warning", f"{_PATIENTS}; {keeping_together(files)} {known}"))
    good: dict[str, list[Picture]] = {}
    for centre, pictures in layout.centres.items():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            seen = list(pool.map(_look, pictures))
        good[centre] = [p for p, what in zip(pictures, seen, strict=True) if not isinstance(what, str)]
        report += [
            Finding(level, f"{centre}: {message}") for level, message in _centre(layout, centre, seen, reading.patient)
        ]
    files = files_below(layout.root)
    if unread := unread_pictures(files):
        report.append(Finding("warning", unread))
    other = len(files) - sum(map(len, layout.centres.values())) - len(labelled)
    if other:
        report.append(Finding("ok", f"{count(other, 'other file')} in the folder, not read"))
    if layout.people:
        report += people(layout.centres)
    return report + repeated(good, layout.classes)


def _centre(layout: Layout, centre: str, seen: Sequence[Seen], expression: str) -> list[tuple[str, str]]:
    pictures = layout.centres[centre]
    counts = layout.counts(pictures)
    listed = counted([picture.target for picture in pictures], layout.classes, "picture")
    people = count_people(pictures)
    whose = f" of {count(people, 'patient')}" if people < len(pictures) else ""
    found = [("ok", f"{count(len(pictures), 'picture')}{whose}: {listed}")]
    alone = [p for p in pictures if p.patient == p.id and p.file.suffix.lower() in PICTURES]
    if layout.people and alone:
        words = f"{len(alone):,} of them have no patient, {alone[0].file} first: each counts as its own"
        found.append(("warning", words))
    if people == 1 < len(pictures):
        if expression:
            level = level_of_one(layout.centres.values())
            found.append((level, all_of_one(len(pictures), "pictures", centre, expression)))
        else:
            found.append(("warning", _ONE_PATIENT))
    good = [what for what in seen if not isinstance(what, str)]
    if good:
        found.append(("ok", _sizes([size for size, *_ in good])))
        highest = max(high for _, _, high, _ in good)
        dark, few = (
            [p for p, what in zip(pictures, seen, strict=True) if not isinstance(what, str) and what[3] == words]
            for words in (TOO_DARK, FAINT)
        )
        if few:
            found.append(("warning", f"{count(len(few), 'DICOM image')}, {few[0].file} first: {FAINT}"))
        if highest > DARK and dark:
            words = f"{len(dark):,} files of 16 bits have no pixel above {DARK} of 255, {dark[0].file} first"
            found.append(("warning", f"{words}: values of 12 bits? rescale them first"))
        if highest <= DARK and len(few) < len(good):
            words = "no pixel of any picture is above {} of 255: values of 12 bits in files of 16? rescale them first"
            found.append(("warning", words.format(highest)))
    found += _divided(layout, centre)
    if absent := [name for label, name in enumerate(layout.classes) if not counts[label]]:
        found.append(("warning", f"no picture of class {', '.join(absent)}"))
    if single := [name for label, name in enumerate(layout.classes) if counts[label] == 1]:
        found.append(("warning", f"only one picture of class {', '.join(single)}: cannot be in training and in test"))
    constant = [p for p, what in zip(pictures, seen, strict=True) if not isinstance(what, str) and what[1]]
    if constant:
        found.append(("warning", f"pictures of one colour: {len(constant):,}, the first is {constant[0].file}"))
    broken = [what for what in seen if isinstance(what, str)]
    found += [("error", what) for what in broken[:_MOST]]
    if len(broken) > _MOST:
        found.append(("error", f"and {len(broken) - _MOST:,} more like these"))
    return found


def _divided(layout: Layout, centre: str) -> Iterator[tuple[str, str]]:
    pictures = layout.centres[centre]
    try:
        parts = split_patients(pictures, _FRACTIONS, 1.0, 0, centre)
    except UserError as error:
        yield "error", str(error)
        return
    shares = "/".join(f"{share:g}" for share in _FRACTIONS)
    by = "the table" if any(picture.split for picture in pictures) else f"the default split ({shares})"
    yield "ok", f"by {by}: {in_numbers(parts)}"
    yield from (("warning", words) for words in no_validation(pictures, parts, centre, by))
    if not layout.several:
        labels = {part: [picture.label for picture in parts[part]] for part in PARTS}
        yield from (("warning", words) for words in of_a_site(labels, layout.classes, by))


def _look(picture: Picture) -> Seen:
    try:
        pixels = read_picture(picture.file, Reading(fit="stretch"))
        return picture_size(picture.file), of_one_colour(pixels), int(pixels.max()), faint(picture.file, pixels)
    except UserError as error:
        return str(error)


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    """The smallest and the largest width, and height."""
    width, height = (
        f"{min(sides):,}" + (f" to {max(sides):,}" if min(sides) < max(sides) else "")
        for sides in zip(*sizes, strict=True)
    )
    return f"{width}×{height} pixels" if len(set(sizes)) == 1 else f"{width} × {height} pixels (width × height)"
