"""A hospital's manifest: which folders of CT volumes there are, what they hold, and where the labels stand.

``manifest.json``; paths are relative to its folder::

    {"schema": 1, "name": "chest-ct", "classes": ["no emphysema", "emphysema"],
     "centres": [{"name": "centre-1", "kind": "dicom", "folder": "ct", "labels": "ct/labels.csv"},
                 {"name": "centre-2", "kind": "nifti", "folder": "nifti", "datalist": "nifti/datalist.json"}]}

A folder without a manifest will do if it, or each of its sub-folders, holds ``labels.csv`` or ``datalist.json``.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from medpfl.core.errors import UserError
from medpfl.core.home import at_home
from medpfl.core.plain import plain_problem
from medpfl.data.files import composed, is_hidden, is_nifti
from medpfl.data.kinds.scans.label_classes import classes_of
from medpfl.data.kinds.scans.label_table import (
    Columns,
    names_pictures,
    read_json,
    read_rows,
    spreadsheet,
)
from medpfl.data.places import is_path, looked_in, places

Format = Literal["dicom", "nifti"]
TABLE, DATALIST, MANIFEST = "labels.csv", "datalist.json", "manifest.json"


class Centre(BaseModel):
    """One hospital's folder, and its label table or MONAI datalist (exactly one of them)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    kind: Format
    folder: Path
    labels: Path | None = None
    datalist: Path | None = None
    description: str = ""

    @model_validator(mode="after")
    def _one_source(self) -> Centre:
        if (self.labels is None) == (self.datalist is None):
            raise ValueError("give either `labels` (a CSV table) or `datalist` (a MONAI JSON datalist)")
        return self


class Manifest(BaseModel):
    """What the file says.

    Attributes:
        version: ``schema`` in the file.
        phantom: whether the volumes are synthetic.
        classes: class names; a label is the index.
        skip_broken: leave out volumes that cannot be used, instead of stopping.
        root: folder that relative paths start from; not in the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    version: Literal[1] = Field(alias="schema")
    name: str = Field(min_length=1)
    phantom: bool = False
    classes: tuple[str, ...] = Field(min_length=2)
    skip_broken: bool = False
    centres: tuple[Centre, ...] = Field(min_length=1)
    root: Path = Field(exclude=True)

    @field_validator("classes")
    @classmethod
    def _one_form(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(composed, classes))

    @property
    def tables(self) -> list[Path]:
        """The label tables and datalists of all centres."""
        return [self.root / (centre.labels or centre.datalist) for centre in self.centres]

    @model_validator(mode="after")
    def _distinct(self) -> Manifest:
        for what, names in (("class", self.classes), ("centre", [c.name for c in self.centres])):
            if twice := next((name for name in names if list(names).count(name) > 1), None):
                raise ValueError(f"two entries for the {what} {twice!r}; names must differ")
        if problem := plain_problem(self.classes, "classes"):
            raise ValueError(problem)
        return self

    def centre(self, name: str) -> Centre:
        """The centre of that name; UserError if there is none."""
        for centre in self.centres:
            if centre.name == name:
                return centre
        raise UserError(f"{self.root}: has no centre {name!r}: it has {', '.join(c.name for c in self.centres)}")


def find_manifest(data: str) -> Path:
    """The path of a ``--data`` value: an existing path, or a name for which a folder holds ``NAME`` or ``NAME.json``.

    Raises:
        UserError: there is no such thing; the message says where was looked.
    """
    if there := places(data):
        # What holds no scans is opened all the same, to say what it lacks.
        return next(filter(holds_scans, there), there[0])
    if is_path(data):
        raise UserError(f"{data}: there is no such file or folder")
    raise UserError(
        f"CT data {data!r} are not on this machine: no folder and no {data}.json of that name in {looked_in()}"
    )


def open_manifest(path: str | Path, classes: tuple[str, ...] = ()) -> Manifest:
    """Reads a manifest file, or makes the manifest of a folder that has none.

    Args:
        path: a manifest (``*.json``); a folder with ``manifest.json``; a folder that is one centre, with
            ``labels.csv`` or ``datalist.json``; or a folder of such folders. In the last two the classes are the
            distinct labels of the tables, sorted, or all numbers from 0 to the highest where they are whole numbers.
        classes: those of the job. A folder without a manifest has these if its labels are among them: a hospital may
            lack a class, and their order is the job's.

    Raises:
        UserError: nothing of that kind is there, or what is there is wrong; so are, where labels make the classes,
            two that differ in case or spaces alone, and a label that is none of the job's classes where others are.
    """
    path = at_home(path)
    if path.is_file():
        return _read(path)
    if not path.is_dir():
        raise UserError(f"{path}: there is no such file or folder")
    if (path / MANIFEST).is_file():
        return _read(path / MANIFEST)
    centres = [(path.resolve().name, ".")] if _source(path) else [(f.name, f.name) for f in _centre_folders(path)]
    if not centres:
        raise UserError(f"{path}: {_lacking(path)}")
    return _from_folders(path, centres, classes)


def require_classes(manifest: Manifest, asked: tuple[str, ...]) -> None:
    """UserError if a job names classes, and these are others or in another order."""
    if asked and asked != manifest.classes:
        raise UserError(
            f"{manifest.root}: its classes are {', '.join(manifest.classes)}, the job's are {', '.join(asked)}"
            + ("; the order matters" if set(asked) == set(manifest.classes) else "")
        )


def unused_folders(path: Path) -> list[str]:
    """Sub-folders that are no centre for want of a table, in words; none where a manifest or a table is in ``path``."""
    if not path.is_dir() or (path / MANIFEST).is_file() or _source(path):
        return []
    return [
        f"{folder.name}: no {TABLE} or {DATALIST}, not used" + (f" ({hint})" if (hint := _instead(folder)) else "")
        for folder in _folders(path)
        if not _source(folder)
    ]


def _lacking(path: Path) -> str:
    """What a folder without centres needs."""
    with suppress(OSError):
        if not any(path.iterdir()):
            return "the folder is empty"
    hints = [_instead(path), *(f"{f.name}: {hint}" for f in _folders(path) if (hint := _instead(f)))]
    needed = (
        "a table has the columns series and label, one row for each CT series; pictures (.png, .jpg, ...) need no "
        "table, but a folder for each class; a mask is called as its image with _mask, _seg or _label added; `medpfl "
        f"data inventory {shlex.quote(str(path))}` lists what is there"
    )
    hint = next(filter(None, hints), needed)
    return f"neither {MANIFEST} nor {TABLE} or {DATALIST} is in it or in its folders; {hint}"


def _instead(folder: Path) -> str:
    """What lies near where a table should be."""
    if hint := spreadsheet(folder):
        return hint
    try:
        for inside in sorted(folder.iterdir()):
            if inside.name.lower() in (TABLE, DATALIST):
                return f"{inside.name} is there: call it {inside.name.lower()}"
            if inside.is_dir() and (source := _source(inside)):
                return f"{inside.name}/{source} is there: it must lie in {folder.name} itself"
    except OSError:
        pass
    return ""


def _read(path: Path) -> Manifest:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a manifest: a JSON object with schema, name, classes and centres is needed")
    if "centres" not in content and "training" in content:
        raise UserError(f"{path}: a datalist, not a manifest: give its folder ({path.parent}) instead")
    if "root" in content:
        raise UserError(f"{path}: root: unknown field; folders are relative to the manifest's own")
    try:
        return Manifest.model_validate({**content, "root": path.parent})
    except ValidationError as error:
        raise UserError(f"{path}: {_in_words(error, content)}") from None


def _in_words(error: ValidationError, content: dict[str, Any]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = Manifest if len(first["loc"]) == 1 else Centre
        names = [field.alias or name for name, field in known.model_fields.items() if not field.exclude]
        return f"{where}: unknown field; there are {', '.join(names)}"
    if where == "schema" and "schema" in content:
        return f"schema {json.dumps(content['schema'])} is not known; this version reads schema 1"
    if first["type"] == "missing":
        return f"{where}: is missing" + (', write "schema": 1' if where == "schema" else "")
    if first["type"] == "too_short":
        return f"{where}: at least {first['ctx']['min_length']} are needed"
    if first["type"] == "string_type":
        return f"{where}: must be text, in quotation marks, and is {json.dumps(first['input'])}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def holds_scans(path: Path) -> bool:
    """Whether a manifest, a label table or a datalist is there."""
    try:
        if path.is_file():
            return b'"centres"' in path.read_bytes()
        return (path / MANIFEST).is_file() or bool(_source(path) or _centre_folders(path))
    except (OSError, UserError):
        return False


def _centre_folders(folder: Path) -> list[Path]:
    return [inside for inside in _folders(folder) if _source(inside)]


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(inside for inside in folder.iterdir() if inside.is_dir() and not is_hidden(inside.name))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _source(folder: Path) -> str | None:
    there = [name for name in (TABLE, DATALIST) if (folder / name).is_file()]
    return next((name for name in there if not names_pictures(folder / name)), None)


def _from_folders(root: Path, centres: list[tuple[str, str]], classes: tuple[str, ...]) -> Manifest:
    entries, labelled, problems = [], [], []
    for name, folder in centres:
        source = _source(root / folder)
        found = read_rows(root / folder / source, Columns(classes=classes))
        rows, problems = found.rows, problems + found.problems
        labelled += rows
        kind = "nifti" if rows and all(is_nifti(row.series) for row in rows) else "dicom"
        key = "labels" if source == TABLE else "datalist"
        entries.append(Centre(name=name, kind=kind, folder=Path(folder), **{key: Path(folder) / source}))
    named = [(name, row.where) for row in labelled for name in row.named]
    others = [(name, where) for name, where in named if name not in classes]
    if others and len(others) < len(named):
        (name, where), listed = others[0], ", ".join(classes)
        raise UserError(f"{where}: label {name!r} is none of the job's classes ({listed})")
    try:
        if not classes or others:
            classes = classes_of(root, named, "scans", f"a {MANIFEST} that names the classes")
    except UserError:
        if problems:  # The classes are wrong because rows are.
            raise UserError(problems[0]) from None
        raise
    return Manifest(version=1, name=root.resolve().name or "ct", classes=classes, centres=tuple(entries), root=root)
