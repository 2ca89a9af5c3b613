"""Label tables and MONAI datalists: which series is which class, of which patient, in which part."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS, Part
from medpfl.data.files import composed, is_nifti
from medpfl.data.kinds.scans.label_classes import class_number, is_number
from medpfl.data.kinds.scans.label_columns import (
    NO_LABEL,
    Form,
    Labels,
    columns,
    delimiter_of,
    form_of,
    head,
    labels_of,
)
from medpfl.data.labels import Target
from medpfl.data.part_words import PART_WORDS
from medpfl.data.spreadsheet import in_one_line, meant, says_separator, whole_number

_OTHER_VOLUMES = {
    ".nrrd": "NRRD", ".nhdr": "NRRD", ".mha": "MetaImage", ".mhd": "MetaImage", ".hdr": "Analyze or a NIfTI pair",
    ".img": "Analyze or a NIfTI pair", ".mgh": "MGH", ".mgz": "MGH", ".mnc": "MINC", ".par": "PAR/REC",
    ".rec": "PAR/REC", ".head": "AFNI", ".brik": "AFNI", ".brik.gz": "AFNI", ".gipl": "GIPL", ".vtk": "VTK",
}  # fmt: skip


SECTIONS: dict[str, Part] = {"training": "train", "validation": "validation", "test": "test", "testing": "test"}
"""The lists of a datalist."""


@dataclass(frozen=True)
class Row:
    """One labelled scan as the table has it.

    Attributes:
        series: SeriesInstanceUID, or a path relative to the centre's folder; of pictures their path.
        label: class name or number, as text; or several labels.
        patient: None where the table does not say.
        split: None where the table does not say.
        where: file and line, for messages.
    """

    series: str
    label: str | Labels
    patient: str | None
    split: Part | None
    where: str

    @property
    def named(self) -> list[str]:
        """The classes that it names, whether they are there or not."""
        return [self.label] if isinstance(self.label, str) else list(self.label.said)

    def target(self, classes: Sequence[str]) -> Target:
        """What its sample is labelled with; UserError if it names what is no class."""
        numbers = [class_number(name, classes) for name in self.named]
        if None in numbers:
            label = self.named[numbers.index(None)]
            raise UserError(f"{self.where}: label {label!r} is neither a class ({', '.join(classes)}) nor its number")
        if isinstance(self.label, str):
            return numbers[0]
        if len(set(numbers)) < len(numbers):
            first, second = [name for name, k in zip(self.named, numbers, strict=True) if numbers.count(k) > 1][:2]
            raise UserError(f"{self.where}: {first!r} and {second!r} are one label: say it once")
        said = dict(zip(numbers, self.label.said.values(), strict=True))
        return tuple(said.get(number, self.label.rest) for number in range(len(classes)))


PICTURE = "picture"
"""The column of what is labelled in a table of pictures."""


@dataclass(frozen=True)
class Columns:
    """What is asked of a table: the column of what is labelled, and names that are classes whatever they look like."""

    what: str = "series"
    classes: Sequence[str] = ()


@dataclass
class Rows:
    """A table's usable rows, what is wrong with it in words, and the series of the rows that cannot be used."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def other_volume(name: str | Path) -> str | None:
    """Why a file of volumes in another format than NIfTI is not read; None if its name is not like theirs'."""
    form = next((form for end, form in _OTHER_VOLUMES.items() if str(name).lower().endswith(end)), None)
    return f"{form} is not read: save it as one NIfTI file (.nii.gz)" if form else None


def names_pictures(path: Path) -> bool:
    """Whether a file is a label table of pictures, with a column ``picture``, and not of series."""
    found = head(path)
    return PICTURE in found and Columns.what not in found


def read_rows(path: Path, asked: Columns) -> Rows:
    """Reads ``labels.csv`` or a datalist, whichever the file is.

    Args:
        path: the file.
        asked: of a table.

    Raises:
        UserError: the file cannot be read at all, or lacks a column; what is wrong with single rows is in the result.
    """
    found = (_read_datalist if path.suffix.lower() == ".json" else _read_table)(path, asked)
    if not found.rows and not found.problems:
        raise UserError(f"{path}: has no rows; one for each labelled {asked.what} is needed")
    first: dict[str, Row] = {}
    for row in found.rows:
        key = composed(row.series.replace("\\", "/").removeprefix("./").rstrip("/"))
        if (before := first.setdefault(key, row)) is not row:
            found.problems.append(f"{row.where}: {row.series} is there a second time, first in {before.where}")
    found.rows = list(first.values())
    without = [row for row in found.rows if row.split is None]
    if without and len(without) < len(found.rows):
        found.problems.append(
            f"{without[0].where}: no split, while other rows have one; give train, validation or test for all or none"
        )
    return found


def spreadsheet(folder: Path) -> str:
    """What to do about a spreadsheet that lies where a table should be; empty if there is none."""
    for name in ("labels.xlsx", "labels.xls", "labels.ods"):
        if (folder / name).is_file():
            return f"{name} is there: save it as CSV (UTF-8), labels.csv"
    return ""


def read_json(path: Path) -> Any:
    """A JSON file's content; UserError with line and column if it has none."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand lists in each other
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _read_table(path: Path, asked: Columns) -> Rows:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        instead = spreadsheet(path.parent)
        raise UserError(f"{path}: there is no such file" + (f"; {instead}" if instead else "")) from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text: save the table as CSV in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    first = text.partition("\n")[0]
    table = _records(path, text, delimiter_of(first))
    if says_separator(first):
        next(table)
    names = columns(next(table, (1, []))[1])
    if names.count(asked.what) != 1:
        has = ", ".join(names) or "nothing"
        or_pictures = f" (of pictures {PICTURE!r})" if asked.what == Columns.what else ""
        raise UserError(f"{path}: needs one column {asked.what!r}{or_pictures} in its first line, which has: {has}")
    if twice := next((name for name in ("patient", "split") if names.count(name) > 1), None):
        raise UserError(f"{path}: two columns are called {twice!r} in its first line: which one is meant?")
    form = form_of(names, path)
    found = Rows()
    for line, cells in table:
        if not any(cell.strip() for cell in cells):
            continue
        values = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        where = f"{path}, line {line}"
        if any(cell.strip() for cell in cells[len(names) :]):
            found.problems.append(f"{where}: {len(cells)} cells, and the first line has {len(names)}: is one divided?")
            found.refused.append(values[asked.what])
        else:
            _add(found, values, where, form, asked)
    return found


def _records(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The table's records with the lines that they begin in."""
    # Strict: otherwise a quotation mark that is never closed makes the rest of the table one cell, and nobody notices.
    # Of a text its lines would be divided at signs too that a report may have within a cell (U+2028, U+0085).
    table = csv.reader(StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        line = table.line_num + 1
        try:
            yield line, [meant(in_one_line(cell)) for cell in next(table)]
        except StopIteration:
            return
        except csv.Error as error:
            hint = "is there a stray quotation mark?"
            raise UserError(f"{path}, line {line}: cannot be read as CSV: {error}; {hint}") from None


def _add(found: Rows, values: dict[str, str], where: str, form: Form, asked: Columns) -> None:
    split, what = values.get("split", ""), values.get(asked.what, "")
    part = PART_WORDS.get(split.lower())
    label = composed(values.get("label", "")) if form == "label" else labels_of(values, form)
    problem = _unlabelled(what, label, form, asked)
    if not problem and split and part is None:
        problem = f"split is {split!r}; right are {', '.join(PARTS)}, or no such column"
    if problem:
        found.problems.append(f"{where}: {problem}")
        found.refused.append(what)
        return
    patient = composed(values.get("patient", ""))
    known = patient if patient.lower() not in NO_LABEL else None
    found.rows.append(Row(what, label, known, part, where))


def _unlabelled(what: str, label: str | Labels, form: Form, asked: Columns) -> str | None:
    """Why a row has nothing to be labelled or no class."""
    if not what:
        return f"{asked.what} is empty"
    if isinstance(label, Labels):
        return next((why for name in label.said if (why := _no_class(name, asked.classes))), None)
    if form != "label":
        return label
    return _no_class(label, asked.classes) if label else "label is empty"


def _no_class(label: str, classes: Sequence[str]) -> str | None:
    if label in classes:
        return None
    named_so = "if a class is called so, name the classes (a manifest's, or --data-arg classes=...)"
    whole = whole_number(label)
    if label.lower() in NO_LABEL or (whole.startswith("-") and is_number(whole[1:])):
        return f"label {label!r} is no class: give one, or take the row out; {named_so}"
    if whole != label:
        return f"label {label!r}: write {whole}, without decimals, which programs give to numbers; {named_so}"
    if is_nifti(label) or other_volume(label):
        return f"label {label!r} is a file, as for segmentation; here a scan has one class"
    return None


def _read_datalist(path: Path, asked: Columns) -> Rows:
    content = read_json(path)
    sections = {s: content[s] for s in SECTIONS if content.get(s)} if isinstance(content, dict) else {}
    if "training" not in sections:
        raise UserError(f'{path}: needs "training": [{{"image": ..., "label": ...}}, ...], as MONAI\'s datalists have')
    found = Rows()
    for section, items in sections.items():
        if not isinstance(items, list):
            raise UserError(f"{path}: {section!r} is not a list")
        for number, item in enumerate(items, start=1):
            where = f"{path}, {section} {number}"
            if not isinstance(item, dict) or not isinstance(item.get("image"), str):
                found.problems.append(f'{where}: must be {{"image": path, "label": class}}, with one path')
                continue
            label = item.get("label")
            if isinstance(label, float) and label.is_integer():
                label = int(label)
            if isinstance(label, bool) or not isinstance(label, int | str):
                listed = ", not a list (several labels stand in a labels.csv; masks are for segmentation)"
                listed = listed if isinstance(label, list) else ""
                found.problems.append(
                    f"{where}: label is {json.dumps(label)}; one class name or number is needed{listed}"
                )
                found.refused.append(item["image"])
                continue
            split = SECTIONS[section] if len(sections) > 1 else ""
            patient = item.get("patient")
            patient = "" if patient is None else str(patient).strip()
            said = {"series": item["image"], "label": str(label), "patient": patient, "split": split}
            _add(found, said, where, "label", asked)
    return found
