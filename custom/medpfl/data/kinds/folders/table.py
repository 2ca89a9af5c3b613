"""Pictures with labels and patients from a table: ``labels.csv`` with the columns picture and label, or labels.

``labels`` are several a picture, divided by ``|``: ``effusion|nodule``; an empty cell is none of them.
The reader is that of scans' tables; ``patient`` and ``split`` are optional. Paths are relative to the table's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.files import existing
from medpfl.data.kinds.scans.label_table import (
    Columns,
    Row,
    class_number,
    names_pictures,
    read_rows,
    says_several,
)
from medpfl.data.kinds.scans.manifest import TABLE, classes_of

_PICTURE = "picture"


def tables(root: Path) -> dict[str, Path]:
    """By centre its table: of the folder itself, or else of its sub-folders; none where there is no such table."""
    if names_pictures(root / TABLE):
        return {root.resolve().name: root / TABLE}
    try:
        inside = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    except OSError:
        return {}
    return {folder.name: folder / TABLE for folder in inside if names_pictures(folder / TABLE)}


def several_labels(found: dict[str, Path]) -> bool:
    """Whether the tables say several labels a picture; UserError if some do and some do not."""
    said = {says_several(table) for table in found.values()}
    if len(said) > 1:
        raise UserError(f"{' and '.join(map(str, found.values()))}: some have a column label and some labels")
    return said == {True}


def read_tables(
    root: Path, found: dict[str, Path], named: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, tuple[int, ...], Row]]]]:
    """The classes, and by centre the labelled files with the numbers of their classes, and rows.

    Args:
        root: the data's folder.
        found: of :func:`tables`.
        named: the job's classes; by default the labels, sorted, or all numbers from 0 on.

    Raises:
        UserError: a row that cannot be used, a file that is not there, or labels that make no classes.
    """
    columns = Columns(_PICTURE, "labels" if several_labels(found) else "label", named)
    read = {centre: read_rows(table, columns) for centre, table in found.items()}
    problems = [problem for rows in read.values() for problem in rows.problems]
    if problems:
        more = f" (and {len(problems) - 1:,} more like it)" if problems[1:] else ""
        raise UserError(f"{problems[0]}{more}")
    labelled = [row for rows in read.values() for row in rows.rows]
    each = [replace(row, label=label) for row in labelled for label in _said(row, columns)]
    classes = tuple(named) or classes_of(root, each, "pictures", "--data-arg classes=...")
    pictures = {}
    for centre, rows in read.items():
        folder = found[centre].parent
        pictures[centre] = [(_file(folder, row), _labels(row, columns, classes), row) for row in rows.rows]
        _require_once(pictures[centre])
    return classes, pictures


def _require_once(pictures: Sequence[tuple[Path, tuple[int, ...], Row]]) -> None:
    """UserError if a picture stands in two rows, whatever the paths: it would be two patients."""
    rows: dict[Path, Row] = {}
    for file, _, row in pictures:
        if (first := rows.setdefault(file.resolve(), row)) is not row:
            raise UserError(f"{row.where}: {row.series} is the same picture as {first.series} ({first.where})")


def _said(row: Row, columns: Columns) -> list[str]:
    return [part for label in row.label.split("|") if (part := label.strip())] if columns.several else [row.label]


def _labels(row: Row, columns: Columns, classes: Sequence[str]) -> tuple[int, ...]:
    numbers = []
    for label in _said(row, columns):
        if (number := class_number(label, classes)) is None:
            raise UserError(f"{row.where}: label {label!r} is neither a class ({', '.join(classes)}) nor its number")
        numbers.append(number)
    return tuple(sorted(set(numbers)))


def _file(folder: Path, row: Row) -> Path:
    try:
        file = existing(folder, row.series)
        inside = file.resolve().is_relative_to(folder.resolve())
        there = file.is_file()
    except (OSError, ValueError):  # a path too long, or with a character that no path has
        raise UserError(f"{row.where}: {row.series[:100]!r} is no path of a picture") from None
    if not inside:
        raise UserError(f"{row.where}: {row.series} lies outside of {folder}; paths are relative to the table's folder")
    if not there:
        raise UserError(f"{row.where}: {row.series}: there is no such file in {folder}")
    return file
