"""Joining sites on a terminal."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from medpfl.report.words import algorithm_name, count, points, score


def print_joined(joined: dict[str, Any], console: Console) -> None:
    """A row for every site: accuracy and AUC as received, after adapting, and trained alone as long."""
    run, epochs = joined["run"], joined["epochs"]
    title = f"Joining {algorithm_name(run['algorithm'])} after {count(run['rounds'], 'round')} of {run['sites']} sites"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    table.add_column("site", overflow="fold")
    for head in ("n test", "accuracy\nreceived", "adapted", "alone", "AUC\nreceived", "adapted", "alone", "epochs"):
        table.add_column(head, justify="right")
    for name, site in joined["sites"].items():
        kept = f"{site['epoch']} of {epochs}"
        table.add_row(Text(name), str((site["received"] or {}).get("n", 0)), *_cells(site), kept)
    if len(joined["sites"]) > 1:
        table.add_section()
        table.add_row("mean", "", *_cells(joined["mean"]), "", style="bold")
    console.print(table)
    mean = joined["mean"]
    if None not in (mean["adapted"]["accuracy"], mean["alone"]["accuracy"]):
        change = points(mean["adapted"]["accuracy"] - mean["alone"]["accuracy"])
        console.print(f"Adapted against alone, mean accuracy: {change} points", highlight=False)
    shared = joined["rules"]["shared"]
    console.print(Text(f"Shared part: {shared['what']} ({shared['why']})"), soft_wrap=True)
    for rule in joined["rules"]["personal"]:
        console.print(Text(f"Personal part: {rule['what']} ({rule['why']})"), soft_wrap=True)


def _cells(measured: dict[str, Any]) -> list[str]:
    return [score((measured[which] or {}).get(m)) for m in ("accuracy", "auroc") for which in _COLUMNS]


_COLUMNS = ("received", "adapted", "alone")
