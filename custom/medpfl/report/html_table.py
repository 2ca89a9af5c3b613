"""A table of the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    foot: Sequence[Sequence[str]] = (),
    numbers: Sequence[int] | None = None,
) -> str:
    """A table that scrolls on its own where the page is narrow; by default all columns but the first hold numbers."""
    right = set(range(1, len(heads)) if numbers is None else numbers)

    def row(cells: Sequence[str]) -> str:
        shown = [f'<th scope="row"{_number(0 in right)}>{escape(cells[0])}</th>']
        for column, cell in enumerate(cells[1:], start=1):
            down = "points" in heads[column] and cell.startswith("-")
            # A real minus sign is as wide as the plus; a hyphen is not.
            shown.append(
                f"<td{_number(column in right, down)}>{escape(_minus(cell) if column in right else cell)}</td>"
            )
        return f"<tr>{''.join(shown)}</tr>"

    head = "".join(
        f'<th scope="col"{_number(column in right)}>{escape(name)}</th>' for column, name in enumerate(heads)
    )
    body = "".join(map(row, rows))
    end = f"<tfoot>{''.join(map(row, foot))}</tfoot>" if foot else ""
    name = escape(caption)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{name}"><table><caption>{name}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{end}</table></div>"
    )


def _number(is_number: bool, down: bool = False) -> str:
    return ' class="n down"' if is_number and down else ' class="n"' if is_number else ""


def _minus(cell: str) -> str:
    return f"−{cell[1:]}" if cell.startswith("-") else cell
