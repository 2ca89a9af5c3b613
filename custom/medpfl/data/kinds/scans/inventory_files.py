"""An inventory as a table, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.data.kinds.scans.found import Found, Inventory
from medpfl.data.kinds.scans.inventory import in_words
from medpfl.data.kinds.scans.page import Row, write_page, write_private
from medpfl.data.kinds.scans.proposal import draft, draft_of_pictures, propose
from medpfl.data.spreadsheet import as_text

TABLE, PAGE, LABELS, PICTURES = "inventory.csv", "inventory.html", "labels.csv", "labels-pictures.csv"


_COLUMNS: dict[str, Callable[[Found], str]] = {
    "patient": lambda one: one.patient,
    "date": lambda one: one.date,
    "where": lambda one: one.place,
    "series": lambda one: one.name if one.name != one.place else "",
    "kind": lambda one: one.form,
    "modality": lambda one: one.modality,
    "description": lambda one: one.description,
    "slices": lambda one: str(one.slices or ""),
    "matrix": lambda one: one.matrix,
    "thickness (mm)": lambda one: f"{one.thickness:.4g}" if one.thickness else "",
    "spacing (mm)": lambda one: "×".join(f"{length:.4g}" for length in one.spacing),
    "kernel": lambda one: one.kernel,
    "coverage (mm)": lambda one: f"{one.coverage:.0f}" if one.coverage else "",
    "state": lambda one: one.state,
    "read as": lambda one: one.read_as,
}
_BETWEEN = " | "
"""Reasons of one thing: some have a semicolon within."""
_SHORT = ("where", "modality", "slices", "thickness (mm)", "kernel", "coverage (mm)", "state", "read as")
"""The columns that there is room for on a terminal."""


def heads(dates: bool, short: bool = False) -> list[str]:
    """Of the columns; ``short`` are those of a terminal."""
    return [head for head in _COLUMNS if (dates or head != "date") and (not short or head in (*_SHORT, "date"))]


def cells(one: Found, dates: bool, short: bool = False) -> list[str]:
    """A row, without what is wrong."""
    return [_COLUMNS[head](one) for head in heads(dates, short)]


def write_inventory(
    folder: Path,
    inventory: Inventory,
    drawn: Sequence[tuple[Found, str]],
    labels: Sequence[str],
    dates: bool,
) -> list[Path]:
    """Writes the table, the page and the drafts of label tables, for their owner alone to read.

    Args:
        folder: made if need be.
        inventory: with what was found by decoding it too.
        drawn: its things with their pictures.
        labels: names of several labels that the drafts are to have columns for.
        dates: say the dates of the studies.

    Raises:
        UserError: a label table is there already, or a file cannot be written.
    """
    require_no_tables(folder)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*heads(dates), "what is wrong"])
    for one, _ in drawn:
        table.writerow(map(as_text, [*cells(one, dates), _BETWEEN.join(words for _, words in one.reasons())]))
    lines = [("", line) for line in in_words(inventory)]
    rows = [Row(cells(one, dates), image, problems=one.reasons()) for one, image in drawn]
    written = [
        write_private(folder / TABLE, text.getvalue()),
        write_page(folder / PAGE, f"What is in {inventory.root}", lines, heads(dates), rows),
    ]
    proposals, xrays = propose(inventory), any(one.form == "X-ray" and one.picture for one in inventory.found)
    if proposals:
        written.append(write_private(folder / LABELS, draft(proposals, labels)))
    if xrays:
        written.append(write_private(folder / PICTURES, draft_of_pictures(inventory, labels)))
    return written


def require_no_tables(folder: Path) -> None:
    """UserError if drafts of label tables lie in a folder, which somebody may have filled in."""
    for name in (LABELS, PICTURES):
        if (folder / name).exists():
            raise UserError(f"{folder / name}: is there already, and may have been filled in: give another folder")
