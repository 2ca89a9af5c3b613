"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from medpfl.core.errors import UserError, printable
from medpfl.data.finding import Finding
from medpfl.report.best_variant import advice
from medpfl.report.compare_table import BELOW_LOCAL, WORST_TO_LOCAL, comparison_note, comparison_rows
from medpfl.report.reading import (
    MEASURES,
    Results,
    class_names,
    differences,
    is_local,
    local_reference,
    selected,
    site_scores,
    worst_site,
)
from medpfl.report.side_by_side import Comparison
from medpfl.report.verdicts import gain_lines
from medpfl.report.words import (
    NONE,
    auroc_interval,
    data_name,
    folded,
    further,
    method_name,
    points,
    score,
    site_name,
    spread,
    summary,
)

_MOST_ROWS = 30
_WORST_SHOWN = 10
# A comparison's columns by importance, after the algorithm; those that it does not name follow in their own order.
_FIRST = (
    "AUC",
    "Accuracy",
    "Worst site",
    "To local (points)",
    WORST_TO_LOCAL,
    "New AUC",
    "Held-out AUC",
    BELOW_LOCAL,
    "Better than local",
    "Round",
)
_LABEL = 16
_GAP = 2
# Characters that the columns beside the sites' names need: without the difference to local, and that one's.
_NUMBERS, _DIFFERENCE = 61, 10
_INTERVAL = 6
"""Characters that are saved where an AUC's interval has a line of its own."""
_CELL = 8
"""The longest name that fits below a number of the last row."""


def run_table(results: Results, width: int = 80) -> Table:
    """One row for every site, then mean ± standard deviation over sites and the lowest value of each measure.

    With more than 30 sites only the 10 with the lowest accuracy have a row; the caption says so. Long names are broken
    after hyphens, and where they do not fit into the last row the caption has them.

    Args:
        results: of a finished run.
        width: characters in a line of the terminal.

    Raises:
        UserError: the run has not ended.
    """
    scores = selected(results)
    if scores is None:
        raise UserError(f"{method_name(results)}: the run has not ended, there are no test results yet.")
    change = {} if is_local(results) else differences(scores, local_reference(results), "accuracy")
    classes = len(class_names(results))
    # Two-line heads and cells: the table fits 80 columns, which is what a log file has.
    table = _plain_table(title=_title(results))
    table.add_column("site", no_wrap=True)
    tested = "patients\ntest" if results["data"].get("preprocessing") else "n test"
    for head in (tested, "accuracy", "balanced\naccuracy", "AUC [95% CI]", "classes\nin AUC"):
        table.add_column(head, justify="right", overflow="fold")
    if change:
        table.add_column("to local\n(points)", justify="right", overflow="fold")

    sites, below = list(scores["sites"]), []
    if len(sites) > _MOST_ROWS:
        accuracy = site_scores(scores, "accuracy")
        below.append(f"the {_WORST_SHOWN} sites with the lowest accuracy, of {len(sites)}")
        sites = sorted(sites, key=lambda name: accuracy.get(name, 1.0))[:_WORST_SHOWN]
    names = {name: site_name(results, name) for name in sites}
    free = width - _NUMBERS - (_DIFFERENCE if change else 0)
    if tight := max(map(len, names.values()), default=0) > free:
        free += _INTERVAL
    for name in sites:
        entry = scores["sites"][name]
        row = [
            Text(folded(printable(names[name]), free)),
            NONE if entry.get("n") is None else str(entry["n"]),
            score(entry.get("accuracy")),
            score(entry.get("balanced_accuracy")),
            auroc_interval(entry).replace(" [", "\n[") if tight else auroc_interval(entry),
            _classes(entry.get("auroc_classes"), classes),
        ]
        table.add_row(*row, *([_coloured(change.get(name))] if change else []))
    table.add_section()
    means = [
        spread(scores["mean"].get(measure), scores["std"].get(measure)).replace(" ±", "\n±") for measure in MEASURES
    ]
    table.add_row("mean\n± sd", "", *means, "", *([_coloured(fmean(change.values()))] if change else []), style="bold")
    worst = {measure: found for measure in MEASURES if (found := worst_site(scores, measure))}
    lowest = [Text(f"{worst[m][1]:.3f}" if m in worst else NONE) for m in MEASURES]
    whose = [worst[m][0] if m in worst else "" for m in MEASURES]
    if change:
        least = min(change, key=change.__getitem__)
        lowest += [Text(""), _coloured(change[least])]
        whose += ["", least]
    if max(map(len, whose)) <= _CELL:
        lowest = [cell.append(f"\n{name}", style="default") for cell, name in zip(lowest, whose, strict=True)]
    else:
        heads = (*(measure.replace("_", " ").replace("auroc", "AUC") for measure in MEASURES), "", "to local")
        sites_of = {name: [h for h, n in zip(heads, whose, strict=False) if n == name] for name in whose if name}
        below += [f"worst in {', '.join(measures)}: {name}" for name, measures in sites_of.items()]
    table.add_row("worst\nsite" if max(map(len, whose)) <= _CELL else "worst", "", *lowest)
    table.caption = Text("\n".join(below)) if below else None
    return table


def _classes(counted: int | None, known: int) -> str:
    if counted is None:
        return NONE
    return f"{counted} of {known}" if known else str(counted)


def _plain_table(**options: Any) -> Table:
    return Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", caption_justify="left", **options
    )


def _title(results: Results) -> Text:
    data, config = results["data"], results["config"]
    parts = [method_name(results), data_name(data), data.get("partition"), config.get("model")]
    text = ", ".join(str(part) for part in parts if part)
    chosen = results.get("selected_round")
    text = printable(text)
    return Text(text if chosen is None else f"{text}; round {chosen} of {len(results['rounds'])}")


def _coloured(difference: float | None) -> Text:
    text = points(difference)
    return Text(text, style={"+": "green", "-": "red"}.get(text[0], ""))


def print_run(results: Results, console: Console) -> None:
    """What taking part is worth, the run's table, and the result and what must be known about it in plain lines."""
    for line in gain_lines(results):
        console.print(Text(printable(line)))
    console.print(run_table(results, console.width))
    for line in (summary(results), *further(results), *(results.get("notes") or ())):
        console.print(Text(printable(line)))


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
    for i in sorted(range(1, len(heads)), key=lambda i: _FIRST.index(heads[i]) if heads[i] in _FIRST else len(_FIRST)):
        if widths[i] + _GAP <= free:
            shown.append(i)
            free -= widths[i] + _GAP
    widths[0] = min(widths[0] + free, max(map(len, labels)))
    note = "\n".join([*advice(comparison), comparison_note(comparison)])
    if left := [head for i, head in enumerate(heads) if i not in shown]:
        note += f"\nOnly in comparison.md: {', '.join(left)}."

    table = _plain_table(caption=Text(note), show_edge=False)
    for i in sorted(shown):
        table.add_column(heads[i], justify="right" if i else "left", width=widths[i], overflow="fold")
    for cells in zip(*(columns[i] for i in sorted(shown)), strict=True):
        # Signed cells are the differences: the sign gives the colour.
        table.add_row(*(Text(cell, style={"+": "green", "-": "red"}.get(cell[:1], "")) for cell in cells))
    return table


def print_findings(findings: Sequence[Finding], console: Console) -> bool:
    """Prints what a check of data found; False if they cannot be used."""
    styles = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
    for finding in findings:
        mark = Text(f"{finding.level:<7}", style=styles[finding.level])
        console.print(mark, Text(printable(finding.message)), soft_wrap=True)
    return all(finding.level != "error" for finding in findings)
