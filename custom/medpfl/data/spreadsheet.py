"""Cells of tables that are filled in with a spreadsheet program, which runs what begins as a formula."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)


def as_text(cell: str) -> str:
    """A cell that begins as a formula, as what stands in DICOM headers may, with an apostrophe before it."""
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def without_apostrophe(cell: str) -> str:
    """What :func:`as_text` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
