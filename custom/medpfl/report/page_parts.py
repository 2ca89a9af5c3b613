"""What the page is made of, as plain values for ``templates/parts.html``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        caption: what it shows, for those who cannot see it.
        heads: a name for each column.
        rows: a cell for each column, its first the row's name.
        foot: rows that sum up.
        numbers: the columns that hold numbers; by default all but the first.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    foot: Sequence[Sequence[str]] = ()
    numbers: Collection[int] | None = None

    @property
    def right(self) -> Collection[int]:
        """The columns that are aligned on the right."""
        return range(1, len(self.heads)) if self.numbers is None else self.numbers


@dataclass(frozen=True)
class Picture:
    """An image, by what it shows and as a ``data:`` URI."""

    name: str
    source: str


@dataclass(frozen=True)
class Part:
    """A piece of a section; what it has stands in this order.

    Attributes:
        heading: above all.
        lines: a list.
        table, picture: one of each.
        charts: figures side by side.
        figure: one for itself.
        note: small, under what it explains.
        width: of pictures, figures and note together, in pixels; 0 for the page's.
        beside: parts side by side.
    """

    heading: str = ""
    lines: Sequence[str] = ()
    table: Table | None = None
    picture: Picture | None = None
    charts: Sequence[Markup] = ()
    figure: Markup | None = None
    note: str = ""
    width: int = 0
    beside: Sequence[Part] = ()


@dataclass(frozen=True)
class Section:
    """A run, or a comparison: the facts in small print, the result in a sentence or two, and the parts."""

    facts: str
    lead: str
    parts: Sequence[Part]
