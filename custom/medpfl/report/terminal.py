"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import fmean
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from medpfl.core.errors import UserError, printable
from medpfl.core.measure import Measure
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
from medpfl.report.measures import (
    NONE,
    by_patient,
    change,
    change_head,
    chief,
    classes_in,
    counting_classes,
    first,
    interval_by,
    measures_of,
    short_head,
    spread,
    with_interval,
)
from medpfl.report.reading import (
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
from medpfl.report.sweep import Swept, sweep_note, sweep_rows
from medpfl.report.verdicts import gain_lines
from medpfl.report.words import data_name, folded, further, method_name, site_name, went_wrong

_MOST_ROWS = 30
_WORST_SHOWN = 10
_LABEL = 16
_GAP = 2
_COUNT, _VALUE, _WITH_INTERVAL, _CLASSES = 6, 7, 20, 7
"""Characters that columns need, without the space between two."""
_INTERVAL = 6
"""Characters that are saved where an interval has a line of its own."""
_HEAD = 9
"""Characters of a line in a head, where words are not longer."""
_CELL = 8
"""The longest name that fits below a number of the last row."""


def run_table(results: Results, width: int = 80) -> Table:
    """One row for every site, then mean ± standard deviation over sites and the worst value of each measure.

    With more than 30 sites only the 10 worst by the first measure have a row; the caption says so. Long names are
    broken after hyphens, and where they do not fit into the last row the caption has them.

    Args:
        results: of a finished run.
        width: characters in a line of the terminal.

    Raises:
        UserError: the run has not ended.
    """
    scores = selected(results)
    if scores is None:
        raise UserError(f"{method_name(results)}: the run has not ended, there are no test results yet.")
    measures, begun = measures_of(results), first(results)
    gains = {} if is_local(results) else differences(scores, local_reference(results), begun)
    counted, classes = counting_classes(measures, scores["sites"]), len(class_names(results))
    # Two-line heads and cells: the table fits 80 columns, which is what a log file has.
    table = _plain_table(title=_title(results))
    table.add_column("site", no_wrap=True)
    tested = "patients\ntest" if by_patient(results, scores["sites"]) else "n test"
    heads = {m: _head(m) for m in measures}
    for head in (tested, *heads.values(), *(f"classes\nin {m.title}" for m in counted)):
        table.add_column(head, justify="right", overflow="fold")
    to_local = change_head("to local", begun).replace(" (", "\n(").replace(", ", ",\n")
    if gains:
        table.add_column(to_local, justify="right", overflow="fold")

    sites, below = list(scores["sites"]), []
    if len(sites) > _MOST_ROWS:
        values = site_scores(scores, begun.name)
        end = "lowest" if begun.better == "higher" else "highest"
        below.append(f"the {_WORST_SHOWN} sites with the {end} {begun.title}, of {len(sites)}")
        sites = sorted(sites, key=lambda site: begun.gain(values[site], 0) if site in values else inf)[:_WORST_SHOWN]
    names = {name: site_name(results, name) for name in sites}
    numbers = [_COUNT, *(_needed(m, heads[m]) for m in measures), *(_CLASSES for _ in counted)]
    numbers += [max(map(len, to_local.splitlines()))] if gains else []
    free = width - 2 - sum(2 + n for n in numbers)
    if tight := max(map(len, names.values()), default=0) > free:
        free += _INTERVAL
    for name in sites:
        entry = scores["sites"][name]
        row = [
            Text(folded(printable(names[name]), max(1, free))),
            NONE if entry.get("n") is None else str(entry["n"]),
            *(with_interval(m, entry).replace(" [", "\n[" if tight else " [") for m in measures),
            *(classes_in(m, entry, classes) for m in counted),
        ]
        table.add_row(*row, *([_coloured(begun, gains.get(name))] if gains else []))
    table.add_section()
    means = [spread(m, scores["mean"].get(m.name), scores["std"].get(m.name)).replace(" ±", "\n±") for m in measures]
    none = [""] * len(counted)
    gained = [_coloured(begun, fmean(gains.values()))] if gains else []
    table.add_row("mean\n± sd", "", *means, *none, *gained, style="bold")
    worst = {m: found for m in measures if (found := worst_site(scores, m))}
    lowest = [Text(m.number(worst[m][1]) if m in worst else NONE) for m in measures]
    whose = [worst[m][0] if m in worst else "" for m in measures]
    if gains:
        least = min(gains, key=gains.__getitem__)
        lowest += [*map(Text, none), _coloured(begun, gains[least])]
        whose += [*none, least]
    if max(map(len, whose)) <= _CELL:
        lowest = [cell.append(f"\n{name}", style="default") for cell, name in zip(lowest, whose, strict=True)]
    else:
        titles = (*(m.title for m in measures), *none, "to local")
        sites_of = {name: [t for t, n in zip(titles, whose, strict=False) if n == name] for name in whose if name}
        below += [f"worst in {', '.join(of)}: {name}" for name, of in sites_of.items()]
    table.add_row("worst\nsite" if max(map(len, whose)) <= _CELL else "worst", "", *lowest)
    said = {by for m in measures if m.interval and (by := interval_by(m, scores["sites"].values()))}
    below += [f"95% CI{by}" for by in sorted(said)]
    table.caption = Text("\n".join(below)) if below else None
    return table


def _head(measure: Measure) -> str:
    """Short words on a line of their own each."""
    interval = " [95% CI]" if measure.interval else ""
    unit = f"\n({measure.unit})" if measure.unit else ""
    return "\n".join(wrap(measure.title, _HEAD, break_long_words=False)) + interval + unit


def _needed(measure: Measure, head: str) -> int:
    return max(_WITH_INTERVAL if measure.interval else _VALUE, *map(len, head.splitlines()))


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
    if results.get("selected_rounds"):
        return Text(f"{text}; each site's own round of {len(results['rounds'])}")
    return Text(text if chosen is None else f"{text}; round {chosen} of {len(results['rounds'])}")


def _coloured(measure: Measure, gain: float | None) -> Text:
    text = change(measure, gain)
    return Text(text, style={"+": "green", "-": "red"}.get(text[0], ""))


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
    heads, rows = sweep_rows(found)
    table = _plain_table(caption=Text(sweep_note(found)), show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for cells in rows:
        table.add_row(*map(Text, cells))
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
    if pair_rows(comparison)[1]:
        left.append(TITLE[0].lower() + TITLE[1:])
    if left:
        note += f"\nOnly in comparison.md: {', '.join(left)}."

    table = _plain_table(caption=Text(note), show_edge=False)
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
