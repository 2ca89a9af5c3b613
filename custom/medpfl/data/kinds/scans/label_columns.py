"""The columns of a label table that say what is there: one class, or several labels, and what their cells mean.

One column ``label`` is a class a row. One column ``labels`` is any number of them, divided by ``|``; what is not named
is not there. Columns ``label: NAME`` say of each whether it is there: 1, 0, or nothing where that is not known.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medpfl.core.errors import UserError
from medpfl.data.files import composed
from medpfl.data.labels import NOT_KNOWN
from medpfl.data.spreadsheet import says_separator, whole_number

Form = Literal["label", "labels", "columns"]
EACH = "label:"
"""How the name of a column begins that says of one label whether it is there."""
_THERE, _NOT_THERE = {"1", "1.0", "yes", "true"}, {"0", "0.0", "no", "false"}
NO_LABEL = {"", "nan", "na", "n/a", "null", "-", "?"}
"""What tables have where nobody has said a class."""


@dataclass(frozen=True)
class Labels:
    """The labels that a row speaks of.

    Attributes:
        said: by name or number 1 if it is there, 0 if not, -1 if that is not known.
        rest: the same of all others.
    """

    said: Mapping[str, int]
    rest: int


def head(path: Path) -> list[str]:
    """The columns of a table, in lower case but for names of labels; none of a file that cannot be read."""
    return columns(head_cells(path))


def head_cells(path: Path) -> list[str]:
    """The cells of a table's line of columns as they are written; none of a file that cannot be read."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            line = file.readline()
            delimiter = delimiter_of(line)
            line = file.readline() if says_separator(line) else line
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except (OSError, csv.Error):
        return []
    return [_plain(cell) for cell in cells]


def columns(cells: Iterable[str]) -> list[str]:
    """The cells of a table's first line as names of columns."""
    return [_column(_plain(cell)) for cell in cells]


def _plain(cell: str) -> str:
    return cell.strip().strip('"')


def delimiter_of(line: str) -> str:
    """Spreadsheet programs write semicolons where the decimal sign is a comma."""
    return max(",;\t", key=line.count)


def several_labels(tables: Iterable[Path]) -> bool:
    """Whether tables say several labels a row; UserError if some do and some do not. Datalists never do."""
    one: dict[bool, Path] = {}
    for table in tables:
        forms = _forms(head(table)) if table.suffix.lower() != ".json" else {"label": 1}
        if forms:
            one.setdefault("label" not in forms, table)
    if len(one) > 1:
        raise UserError(f"{one[True]} says several labels a row, {one[False]} a class: all must have one form")
    return True in one


def form_of(names: Sequence[str], path: Path) -> Form:
    """How a table says labels, by its columns; UserError if it does not, or in two ways."""
    forms = _forms(names)
    has = ", ".join(names) or "nothing"
    if not forms or forms["label"] > 1 or forms["labels"] > 1:
        raise UserError(
            f"{path}: needs one column 'label' in its first line, which has: {has}. Several labels a row stand in one "
            f"column 'labels', divided by |, or in columns '{EACH} NAME'"
        )
    if len(forms) > 1:
        raise UserError(f"{path}: says labels in two ways, and one is needed: label, labels or '{EACH} NAME' of {has}")
    called = [name.removeprefix(EACH).strip() for name in names if name.startswith(EACH)]
    if twice := [name for name, count in Counter(called).items() if count > 1 or not name]:
        raise UserError(f"{path}: {'two columns are' if twice[0] else 'a column is'} called '{EACH} {twice[0]}'")
    return next(iter(forms))


def labels_of(values: Mapping[str, str], form: Form) -> Labels | str:
    """The labels of a row, or what is wrong with them in words.

    Args:
        values: its cells by column.
        form: of the table; one of several labels.
    """
    if form == "labels":
        named = (composed(part.strip()) for part in values.get("labels", "").split("|"))
        return Labels({name: 1 for name in named if name}, 0)
    said = {}
    for column, value in values.items():
        if not column.startswith(EACH):
            continue
        state = _state(value.lower())
        if state is None:
            whole = whole_number(value)
            hint = f": its decimals are a spreadsheet's, write {whole}" if _state(whole) is not None else ""
            return f"{column} is {value!r}; right are 1 (there), 0 (not there) and nothing (not known){hint}"
        said[column.removeprefix(EACH).strip()] = state
    if set(said.values()) <= {NOT_KNOWN}:
        return "of none of its labels it is said whether it is there: say it of one, or take the row out"
    return Labels(said, NOT_KNOWN)


def _state(value: str) -> int | None:
    if value in _THERE or value in _NOT_THERE:
        return int(value in _THERE)
    return NOT_KNOWN if value in NO_LABEL or value in ("-1", "-1.0") else None


def _column(cell: str) -> str:
    start, colon, name = cell.partition(":")
    return f"{EACH} {composed(name.strip())}" if colon and start.strip().lower() == "label" else cell.lower()


def _forms(names: Sequence[str]) -> Counter[Form]:
    forms: Counter[Form] = Counter()
    for name in names:
        if name in ("label", "labels"):
            forms[name] += 1
        elif name.startswith(EACH):
            forms["columns"] += 1
    return forms
