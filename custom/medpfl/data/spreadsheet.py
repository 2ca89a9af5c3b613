"""Tables that are filled in with a spreadsheet program, which runs what begins as a formula."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t]")
_LINES = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
"""Where a cell's text begins a new line."""
_TEXT = re.compile(r'="(.*)"')
"""How a program is told not to make a number of a cell, which would lose zeros at its beginning."""
_WHOLE = re.compile(r"([+-]?[0-9]+)[.,](?!000$)0+")
"""Three zeros rather stand for thousands."""
_SEPARATOR = re.compile(r'"?sep=[,;\t]"?[,;\t]*[\r\n]*', re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)


def in_one_line(cell: str) -> str:
    """A cell's text without its ends' spaces and its lines' ends, of which a lone carriage return would begin a row."""
    return _LINES.sub(" ", cell.strip())


def as_text(cell: str) -> str:
    """A cell in one line; if it begins as a formula, as what stands in DICOM headers may, after an apostrophe."""
    cell = in_one_line(cell)
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def meant(cell: str) -> str:
    """What a cell in one line says: what :func:`as_text` made it of, and the text of a formula that is only a text.

    >>> meant("'=1+1"), meant('="0012"')
    ('=1+1', '0012')
    """
    if cell.startswith("'") and _FORMULA.match(cell):
        return cell[1:]
    text = _TEXT.fullmatch(cell)
    return text[1] if text else cell


def says_separator(line: str) -> bool:
    """Whether a table's first line says what divides its columns and nothing else, as Excel has it: ``sep=;``."""
    return bool(_SEPARATOR.fullmatch(line))


def whole_number(cell: str) -> str:
    """A whole number without the decimals that programs give to a column of numbers; other text as it is.

    >>> whole_number("1.0"), whole_number("-2,00"), whole_number("1.5"), whole_number("IV")
    ('1', '-2', '1.5', 'IV')
    """
    found = _WHOLE.fullmatch(cell)
    return found[1] if found else cell
