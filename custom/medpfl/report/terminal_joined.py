"""Joining sites on a terminal."""

from __future__ import annotations

from math import sqrt
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from medpfl.core.errors import printable
from medpfl.report.words import algorithm_name, count, folded, points, score

SMALL = 100
"""Test samples below which a site's own figures are said to be uncertain: an accuracy's standard error, at most
0.5/sqrt(n), is then more than 5 points."""

_NUMBERS = 69
"""Characters that the columns beside the sites' names need."""


def print_joined(joined: dict[str, Any], console: Console) -> None:
    """A row for every site: accuracy and AUC as received, after adapting, and trained alone as long.

    Where the sites choose what they use, that too.
    """
    columns = [*_COLUMNS, *["used" for _ in range("used" in joined["mean"])]]
    run, epochs = joined["run"], joined["epochs"]
    title = f"Joining {algorithm_name(run['algorithm'])} after {count(run['rounds'], 'round')} of {run['sites']} sites"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    table.add_column("site", no_wrap=True)
    for head in ("n\ntest", *_heads("accuracy", columns), *_heads("AUC", columns), "epochs"):
        table.add_column(head, justify="right", no_wrap=True)
    tested = {name: (site["received"] or {}).get("n", 0) for name, site in joined["sites"].items()}
    for name, site in joined["sites"].items():
        kept = f"{site['epoch']} of {epochs}"
        table.add_row(
            Text(folded(printable(name), console.width - _NUMBERS)), str(tested[name]), *_cells(site, columns), kept
        )
    if len(joined["sites"]) > 1:
        table.add_section()
        table.add_row("mean", "", *_cells(joined["mean"], columns), "", style="bold")
    console.print(table)
    mean = joined["mean"]
    if None not in (mean["adapted"]["accuracy"], mean["alone"]["accuracy"]):
        change = points(mean["adapted"]["accuracy"] - mean["alone"]["accuracy"])
        console.print(f"Adapted against alone, mean accuracy: {change} points", highlight=False)
    if few := {name: n for name, n in tested.items() if n < SMALL}:
        console.print(Text(_caution(few)), soft_wrap=True)
    shared = joined["rules"]["shared"]
    console.print(Text(printable(f"Shared part: {shared['what']} ({shared['why']})")), soft_wrap=True)
    for rule in joined["rules"]["personal"]:
        console.print(Text(printable(f"Personal part: {rule['what']} ({rule['why']})")), soft_wrap=True)


def _caution(few: dict[str, int]) -> str:
    """What sites with few test samples can tell: the standard error of a share is at most half of 1/sqrt(n)."""
    listed = ", ".join(f"{name} {n}" for name, n in few.items())
    least = min(few.values())
    error = f"; with {least} the standard error of an accuracy is up to {50 / sqrt(least):.0f} points" if least else ""
    return f"Fewer than {SMALL} test samples, so read the differences with caution: {listed}{error}."


def _heads(measure: str, columns: list[str]) -> list[str]:
    """The measure's name stands above its first column alone."""
    return [f"{measure}\n{columns[0]}", *columns[1:]]


def _cells(measured: dict[str, Any], columns: list[str]) -> list[str]:
    return [score((measured.get(which) or {}).get(m)) for m in ("accuracy", "auroc") for which in columns]


_COLUMNS = ("received", "adapted", "alone")
