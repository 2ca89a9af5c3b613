"""Cells of tables that are filled in with a spreadsheet program, which runs what begins as a formula."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t]")
_LINES = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
"""Where a cell's text begins a new line."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)


def in_one_line(cell: str) -> str:
    """A cell's text without its ends' spaces and its lines' ends, of which a lone carriage return would begin a row."""
    return _LINES.sub(" ", cell.strip())


def as_text(cell: str) -> str:
    """A cell in one line; if it begins as a formula, as what stands in DICOM headers may, after an apostrophe."""
    cell = in_one_line(cell)
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def without_apostrophe(cell: str) -> str:
    """What :func:`as_text` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
