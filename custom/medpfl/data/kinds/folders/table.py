"""Pictures with labels and patients from a table: ``labels.csv`` with the columns picture and label.

The reader is that of scans' tables; ``patient`` and ``split`` are optional. Paths are relative to the table's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.files import existing
from medpfl.data.kinds.scans.label_table import Row, class_number, names_pictures, read_rows
from medpfl.data.kinds.scans.manifest import TABLE, classes_of

COLUMN = "picture"


def tables(root: Path) -> dict[str, Path]:
    """By centre its table: of the folder itself, or else of its sub-folders; none where there is no such table."""
    if names_pictures(root / TABLE):
        return {root.resolve().name: root / TABLE}
    try:
        inside = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    except OSError:
        return {}
    return {folder.name: folder / TABLE for folder in inside if names_pictures(folder / TABLE)}


def read_tables(
    root: Path, found: dict[str, Path], named: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, int, Row]]]]:
    """The classes, and by centre the labelled files with their classes and rows.

    Args:
        root: the data's folder.
        found: of :func:`tables`.
        named: the job's classes; by default the labels, sorted, or all numbers from 0 on.

    Raises:
        UserError: a row that cannot be used, a file that is not there, or labels that make no classes.
    """
    read = {centre: read_rows(table, COLUMN, named) for centre, table in found.items()}
    problems = [problem for rows in read.values() for problem in rows.problems]
    if problems:
        more = f" (and {len(problems) - 1:,} more like it)" if problems[1:] else ""
        raise UserError(f"{problems[0]}{more}")
    labelled = [row for rows in read.values() for row in rows.rows]
    classes = tuple(named) or classes_of(root, labelled, "pictures", "--data-arg classes=...")
    pictures = {}
    for centre, rows in read.items():
        pictures[centre] = [(_file(found[centre].parent, row), _label(row, classes), row) for row in rows.rows]
    return classes, pictures


def _label(row: Row, classes: Sequence[str]) -> int:
    label = class_number(row.label, classes)
    if label is None:
        raise UserError(f"{row.where}: label {row.label!r} is neither a class ({', '.join(classes)}) nor its number")
    return label


def _file(folder: Path, row: Row) -> Path:
    file = existing(folder, row.series)
    if not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{row.where}: {row.series} lies outside of {folder}; paths are relative to the table's folder")
    if not file.is_file():
        raise UserError(f"{row.where}: {row.series}: there is no such file in {folder}")
    return file
