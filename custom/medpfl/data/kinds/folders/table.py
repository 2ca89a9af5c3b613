"""Pictures with labels and patients from a table: ``labels.csv`` with the columns picture and label, or several labels.

The reader is that of scans' tables; ``patient`` and ``split`` are optional. Paths are relative to the table's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.files import PICTURES, below, composed, existing, is_hidden, walk
from medpfl.data.kinds.folders.xray import is_dicom
from medpfl.data.kinds.scans.label_classes import classes_of
from medpfl.data.kinds.scans.label_table import PICTURE, Columns, Row, names_pictures, read_rows
from medpfl.data.kinds.scans.manifest import TABLE
from medpfl.data.labels import Target


def tables(root: Path) -> dict[str, Path]:
    """By centre its table: of the folder itself, or else of its sub-folders; none where there is no such table."""
    if names_pictures(root / TABLE):
        return {root.resolve().name: root / TABLE}
    inside = [folder for folder in _inside(root) if folder.is_dir()]
    return {folder.name: folder / TABLE for folder in inside if names_pictures(folder / TABLE)}


def misnamed(root: Path) -> Path | None:
    """A table of pictures in a folder, or in one of its sub-folders, whose name has capitals, so that none is seen."""
    folders = [root, *(inside for inside in _inside(root) if inside.is_dir())]
    without = (folder for folder in folders if not (folder / TABLE).is_file())
    there = (file for folder in without for file in _inside(folder) if file.name.lower() == TABLE)
    return next(filter(names_pictures, there), None)


def _inside(folder: Path) -> list[Path]:
    """Sorted, without what is hidden; none of a folder that cannot be read, of which reading its pictures tells."""
    try:
        return sorted(path for path in folder.iterdir() if not is_hidden(path.name))
    except OSError:
        return []


def read_tables(
    root: Path, found: dict[str, Path], named: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, Target, Row]]]]:
    """The classes, and by centre the labelled files with what they are labelled with, and rows.

    Args:
        root: the data's folder.
        found: of :func:`tables`.
        named: the job's classes; by default the labels, sorted, or all numbers from 0 on.

    Raises:
        UserError: a row that cannot be used, a file that is not there, or labels that make no classes.
    """
    read = {centre: read_rows(table, Columns(PICTURE, named)) for centre, table in found.items()}
    problems = [problem for rows in read.values() for problem in rows.problems]
    if problems:
        more = f" (and {len(problems) - 1:,} more like it)" if problems[1:] else ""
        raise UserError(f"{problems[0]}{more}")
    labels = [(label, row.where) for rows in read.values() for row in rows.rows for label in row.named]
    classes = tuple(named) or classes_of(root, labels, "pictures", "--data-arg classes=...")
    pictures = {}
    for centre, rows in read.items():
        folder = found[centre].parent
        pictures[centre] = [(_file(folder, row), row.target(classes), row) for row in rows.rows]
        _require_once(pictures[centre])
    return classes, pictures


def _require_once(pictures: Sequence[tuple[Path, Target, Row]]) -> None:
    """UserError if a picture stands in two rows, whatever the paths: it would be two patients."""
    rows: dict[Path, Row] = {}
    for file, _, row in pictures:
        if (first := rows.setdefault(file.resolve(), row)) is not row:
            raise UserError(f"{row.where}: {row.series} is the same picture as {first.series} ({first.where})")


def _file(folder: Path, row: Row) -> Path:
    try:
        file = existing(folder, row.series)
        place = below(folder, file)
        there = file.is_file()
    except (OSError, ValueError):  # a path too long, or with a character that no path has
        raise UserError(f"{row.where}: {row.series[:100]!r} is no path of a picture") from None
    if place is None:
        raise UserError(f"{row.where}: {row.series} lies outside of {folder}; paths are relative to the table's folder")
    if not there:
        hint = ": write / in paths, not \\" if "\\" in row.series else ""
        raise UserError(
            f"{row.where}: {row.series}: there is no such file in {folder}{hint}{_meant(folder, row.series)}"
        )
    return place if Path(row.series).is_absolute() else file


def _meant(folder: Path, name: str) -> str:
    """Which picture below a folder a name may mean, if there is just one, for a message.

    Tables name files without their ending, without their folder, or in other case.
    """
    asked = Path(composed(name.replace("\\", "/")).casefold())
    found = []
    for file in walk(folder, lambda error: None):
        place = file.relative_to(folder)
        called = Path(composed(str(place)).casefold())
        if asked.name in (called.name, called.stem) and (file.suffix.lower() in PICTURES or is_dicom(file)):
            found.append((place, asked in (called, called.with_suffix(""))))
    same_folder = [place for place, whole in found if whole]
    places = same_folder or [place for place, _ in found]
    return f"; is {places[0]} meant?" if len(places) == 1 else ""
