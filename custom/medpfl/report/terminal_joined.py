"""Joining sites on a terminal."""

from __future__ import annotations

from math import sqrt
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from medpfl.core.errors import printable
from medpfl.core.measure import BETTER, Measure
from medpfl.core.numbers_in_words import count
from medpfl.report.measures import chief, measures_of, printed
from medpfl.report.plain_table import literal, plain_table
from medpfl.report.words import algorithm_name, folded

SMALL = 100
"""Test samples below which a site's own figures are said to be uncertain: the standard error of an accuracy, at most
0.5/sqrt(n), is then more than 5 points."""

_TOLD_AT_LEAST = 10
"""What a site with coarse measures tells for fewer samples, too."""
_BESIDE, _NUMBER = 15, 9
"""Characters that the columns beside the sites' names need: samples and epochs, and each of a measure's."""
_NAME = 8
"""Of a site's name that are to fit in a line."""


def print_joined(joined: dict[str, Any], console: Console) -> None:
    """A row for every site: its chief measures as received, after adapting, and trained alone as long.

    Where the sites choose what they use, that too.
    """
    columns = [which for which in _COLUMNS if which in joined["mean"]]
    run, epochs = joined["run"], joined["epochs"]
    measures, left_out = _that_fit(chief(measures_of(joined)), len(columns), console.width)
    numbers = _BESIDE + _NUMBER * len(measures) * len(columns)
    rounds = f"{count(run['rounds'], 'round')} of a federation of {run['sites']} sites"
    title = f"Joining {algorithm_name(run['algorithm'])} after {rounds}"
    table = plain_table(title=title)
    table.add_column("site", no_wrap=True)
    for head in ("n\ntest", *(h for m in measures for h in _heads(m, columns)), "epochs"):
        table.add_column(head, justify="right", no_wrap=True)
    tested = {name: (site["received"] or {}).get("n", 0) for name, site in joined["sites"].items()}
    for name, site in joined["sites"].items():
        kept = f"{site['epoch']} of {epochs}"
        table.add_row(
            Text(folded(printable(name), max(1, console.width - numbers))),
            str(tested[name]),
            *_cells(measures, site, columns),
            kept,
        )
    if len(joined["sites"]) > 1:
        table.add_section()
        table.add_row("mean", "", *_cells(measures, joined["mean"], columns), "", style="bold")
    console.print(table)
    if left_out:
        console.print(literal(f"Only in join.json: {', '.join(m.title for m in left_out)}."))
    begun = measures[0]
    sites = joined["sites"].values()
    model = "used" if "used" in columns else "adapted"
    told = [[(site.get(which) or {}).get(begun.name) for which in (model, "alone")] for site in sites]
    if both := [begun.gain(*pair) for pair in told if None not in pair]:
        sign = "" if begun.better == "higher" else f" ({BETTER})"
        over = "" if len(both) == len(told) else f", over the {len(both)} of {len(told)} sites that tell of both"
        gain = f"{begun.told(fmean(both))}{sign}{over}"
        as_long = f"Alone is {count(epochs, 'epoch')} at most from the run's first model: for longer it may reach more."
        console.print(literal(f"{model.capitalize()} against alone, mean {begun.title}: {gain}. {as_long}"))
    if few := {name: n for name, n in tested.items() if n < SMALL}:
        console.print(literal(_caution(few, of_cases=begun.name == "accuracy")), soft_wrap=True)
    if blind := [name for name, site in joined["sites"].items() if not site["samples"]["validation"]]:
        console.print(literal(_without_validation(blind, chooses="used" in columns)), soft_wrap=True)
    for note in joined.get("notes", ()):
        console.print(Text(f"Warning: {printable(note)}", style="yellow"), soft_wrap=True)
    shared = joined["rules"]["shared"]
    console.print(Text(printable(f"Shared part: {shared['what']} ({shared['why']})")), soft_wrap=True)
    for rule in joined["rules"]["personal"]:
        console.print(Text(printable(f"Personal part: {rule['what']} ({rule['why']})")), soft_wrap=True)


def _that_fit(measures: list[Measure], columns: int, width: int) -> tuple[list[Measure], list[Measure]]:
    """Of the measures those that there is room for, the first always, and the others."""
    room = max(1, (width - _BESIDE - _NAME) // (_NUMBER * columns))
    return measures[:room], measures[room:]


def _caution(few: dict[str, int], *, of_cases: bool) -> str:
    """What sites with few test samples can tell: the standard error of a share of cases is at most 0.5/sqrt(n)."""
    listed = ", ".join(f"{name} {n}" for name, n in few.items())
    least = min(few.values())
    most = f"; with {least} the standard error of an accuracy is up to {50 / sqrt(least):.0f} points" if least else ""
    if 0 < least <= _TOLD_AT_LEAST:
        most = f"; of {_TOLD_AT_LEAST}, as real sites tell fewer too, an accuracy says next to nothing"
    error = most if of_cases else ""
    return f"Fewer than {SMALL} test samples, so read the differences with caution: {listed}{error}."


def _without_validation(sites: list[str], *, chooses: bool) -> str:
    """What these could not choose; where a policy makes numbers coarse a few samples may be told as none."""
    used = ", and a site uses the model that it trained alone" if chooses else ""
    return f"No validation samples, or none told: {', '.join(sites)}. Without any the last epoch is kept{used}."


def _heads(measure: Measure, columns: list[str]) -> list[str]:
    """The measure's name stands above its first column alone."""
    return [f"{measure.titled}\n{columns[0]}", *columns[1:]]


def _cells(measures: list[Measure], measured: dict[str, Any], columns: list[str]) -> list[str]:
    return [printed(m, (measured.get(which) or {}).get(m.name)) for m in measures for which in columns]


_COLUMNS = ("received", "adapted", "alone", "used")
"""The last where sites choose."""
