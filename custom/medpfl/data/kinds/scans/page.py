"""Scans as one HTML page with pictures; it holds patients' images and is for its owner alone to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.templates import templates_of
from medpfl.core.whole_file import write_bytes


@dataclass(frozen=True)
class Row:
    """One scan: a cell for each head, a picture (a ``data:`` URI), shares of values as bars, and what is odd."""

    cells: Sequence[str]
    image: str = ""
    bars: Sequence[float] = ()
    axis: str = ""
    problems: Sequence[tuple[str, str]] = ()


def write_page(
    path: Path, title: str, lines: Sequence[tuple[str, str]], heads: Sequence[str], rows: Sequence[Row]
) -> Path:
    """Writes a page (mode 0600) and returns its path.

    Args:
        path: the file.
        title: the page's.
        lines: level and words, above the table.
        heads: of the table's columns.
        rows: the scans.

    Raises:
        UserError: the file cannot be written.
    """
    text = (
        templates_of("medpfl.data").get_template("scans.html").render(title=title, lines=lines, heads=heads, rows=rows)
    )
    return write_private(path, text)


def write_private(path: Path, text: str) -> Path:
    """Writes a text for its owner alone to read; UserError if that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode("utf-8", errors="surrogateescape"), durable=False, mode=0o600)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return path
