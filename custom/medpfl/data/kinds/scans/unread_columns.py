"""Columns of a label table that nobody reads, and which of them are called almost like one that is read."""

from __future__ import annotations

import re
from pathlib import Path

from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.label_columns import EACH, columns, head_cells

_MEANT = {
    "patient": (
        {"mrn", "patientid", "patientname", "patientno", "patientnumber", "patients", "pid", "subject", "subjectid"},
        "says whose each row is",
    ),
    "split": (
        {"dataset", "fold", "part", "partition", "set", "splits", "subset"},
        "says train, validation or test",
    ),
}
"""Of a column other names, as letters and digits alone, and what it is for."""
_DRAFTED = {"description", "reason"}
"""What `medpfl data inventory` writes into its drafts for people to read."""
_MOST = 10
"""Columns that are named; the rest is counted."""


def unread_columns(table: Path, what: str) -> list[Finding]:
    """A warning for each column that should perhaps be called otherwise, and a note of the others that are not read.

    Args:
        table: ``labels.csv``.
        what: the column of what is labelled.
    """
    cells = head_cells(table)
    names = columns(cells)
    read = {what, "label", "labels", *_MEANT}
    found, others = [], []
    for name, cell in zip(names, cells, strict=True):
        if name in read or name in _DRAFTED or name.startswith(EACH) or not name:
            continue
        if (meant := _meant(name)) and meant not in names:
            words = f"the column {cell!r} is not read: call it {meant} if it {_MEANT[meant][1]}"
            found.append(Finding("warning", f"{table}: {words}"))
        else:
            others.append(cell)
    if others:
        more = f" and {len(others) - _MOST:,} more" if len(others) > _MOST else ""
        found.append(Finding("note", f"{table}: columns that are not read: {', '.join(others[:_MOST])}{more}"))
    return found


def _meant(name: str) -> str | None:
    """The column that one of another name may be."""
    letters = re.sub(r"[\W_]", "", name)
    return next((column for column, (others, _) in _MEANT.items() if letters in others), None)
