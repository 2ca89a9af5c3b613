"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from medpfl.core.errors import printable
from medpfl.data.finding import Finding
from medpfl.report.best_variant import advice
from medpfl.report.compare_table import (
    BETTER_THAN_LOCAL,
    below_local,
    comparison_note,
    comparison_rows,
    notes_of,
    together_head,
    worst_to_local,
)
from medpfl.report.every_pair import TITLE, pair_rows
from medpfl.report.headline import summary
from medpfl.report.judged import TITLE as AGAINST_ALONE
from medpfl.report.judged import judged_rows
from medpfl.report.measures import change_head, chief, measures_of, short_head
from medpfl.report.plain_table import plain_table
from medpfl.report.reading import Results
from medpfl.report.run_table import run_table
from medpfl.report.side_by_side import Comparison
from medpfl.report.sweep import Swept, sweep_note, sweep_notes, sweep_rows
from medpfl.report.sweep_chosen import chosen_note, chosen_rows
from medpfl.report.verdicts import gain_lines
from medpfl.report.words import further, went_wrong

_LABEL = 16
_GAP = 2


def print_run(results: Results, console: Console) -> None:
    """What taking part is worth, the run's table, and the result and what must be known about it in plain lines."""
    for line in gain_lines(results):
        console.print(Text(printable(line)))
    console.print(run_table(results, console.width))
    lost = went_wrong(results.get("failures") or ())
    for line in (summary(results), *further(results), *(results.get("notes") or ()), *lost):
        console.print(Text(printable(line)))


def sweep_table(found: Swept) -> Table:
    """One row for every method and value."""
    return _plain(*sweep_rows(found), "\n".join([sweep_note(found), *map(printable, sweep_notes(found))]))


def chosen_table(found: Swept) -> Table | None:
    """One row for every method, at the value that validation data choose; None where they choose none."""
    heads, rows = chosen_rows(found)
    return _plain(heads, rows, chosen_note(found)) if rows else None


def _plain(heads: list[str], rows: list[list[str]], note: str) -> Table:
    table = plain_table(caption=note, show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    return table


def comparison_table(comparison: Comparison, width: int) -> Table:
    """One row for every algorithm; of the columns of comparison.md, by importance, those that fit with whole numbers.

    Args:
        comparison: of :func:`medpfl.report.side_by_side.compare`.
        width: characters in a line of the terminal.
    """
    heads, rows = comparison_rows(comparison)
    columns = [[row[i].replace(" ±", "\n±") for row in rows] for i in range(len(heads))]
    widths = [
        max(map(len, [*head.split(), *(line for cell in cells for line in cell.splitlines())]))
        for head, cells in zip(heads, columns, strict=True)
    ]
    # Numbers come before labels on one line: a label is folded to what its words need, then gets the rest.
    labels = [heads[0], *columns[0]]
    widths[0] = max(len(line) for label in labels for line in wrap(label, _LABEL, break_on_hyphens=False))
    shown, free = [0], width - widths[0]
    ranks = _ranks(comparison)
    for i in sorted(range(1, len(heads)), key=lambda i: ranks.index(heads[i]) if heads[i] in ranks else len(ranks)):
        if widths[i] + _GAP <= free:
            shown.append(i)
            free -= widths[i] + _GAP
    widths[0] = min(widths[0] + free, max(map(len, labels)))
    note = "\n".join([*advice(comparison), comparison_note(comparison), *map(printable, notes_of(comparison))])
    left = [head for i, head in enumerate(heads) if i not in shown]
    if judged_rows(comparison)[1]:
        left.append(AGAINST_ALONE[0].lower() + AGAINST_ALONE[1:])
    if pair_rows(comparison)[1]:
        left.append(TITLE[0].lower() + TITLE[1:])
    if left:
        note += f"\nOnly in comparison.md: {', '.join(left)}."

    table = plain_table(caption=note, show_edge=False)
    for i in sorted(shown):
        table.add_column(heads[i], justify="right" if i else "left", width=widths[i], overflow="fold")
    for cells in zip(*(columns[i] for i in sorted(shown)), strict=True):
        # Signed cells are the differences: the sign gives the colour.
        table.add_row(*(Text(cell, style={"+": "green", "-": "red"}.get(cell[:1], "")) for cell in cells))
    return table


def _ranks(comparison: Comparison) -> list[str]:
    """A comparison's columns by importance, after the algorithm; those that it does not name follow in their order."""
    measures = measures_of(comparison)
    begun, surest = measures[0], chief(measures)[-1]
    return [
        short_head(surest),
        short_head(begun),
        "Worst site",
        change_head("To local", begun),
        change_head("To own rival", begun),
        worst_to_local(begun),
        together_head("new", surest),
        together_head("held_out", surest),
        below_local(begun),
        BETTER_THAN_LOCAL,
        "Round",
    ]


def print_findings(findings: Sequence[Finding], console: Console) -> bool:
    """Prints what a check of data found; False if they cannot be used."""
    styles = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
    for finding in findings:
        mark = Text(f"{finding.level:<7}", style=styles[finding.level])
        console.print(mark, Text(printable(finding.message)), soft_wrap=True)
    return all(finding.level != "error" for finding in findings)
