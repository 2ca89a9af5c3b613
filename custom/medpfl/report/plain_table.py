"""Tables on a terminal, on which what a results file says is text alone: no markup, and nothing a terminal obeys."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from medpfl.core.errors import printable


class _Table(Table):
    def add_column(self, header: str | Text = "", **options: Any) -> None:  # type: ignore[override]
        super().add_column(literal(header), **options)

    def add_row(self, *cells: str | Text, **options: Any) -> None:  # type: ignore[override]
        super().add_row(*map(literal, cells), **options)


def plain_table(title: str | Text | None = None, caption: str | None = None, **options: Any) -> Table:
    """Without lines but one below the heads."""
    table = _Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", caption_justify="left", **options
    )
    table.title = literal(title, "table.title") if isinstance(title, str) else title and literal(title)
    table.caption = caption and literal(caption)
    return table


def literal(text: str | Text, style: str = "") -> Text:
    """A text as it is; one that has its styles already keeps them, unless a terminal would obey what is in it."""
    if isinstance(text, str):
        return Text(printable(text), style=style)
    return text if (plain := printable(text.plain)) == text.plain else Text(plain)
