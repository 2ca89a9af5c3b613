"""A finished run on a terminal: a row for each site, then the mean and the worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean
from textwrap import wrap
from typing import Any

from rich.table import Table
from rich.text import Text

from medpfl.core.errors import UserError, printable
from medpfl.core.measure import Measure
from medpfl.report.measures import (
    NONE,
    by_patient,
    change,
    change_head,
    classes_in,
    counting_classes,
    first,
    interval_by,
    measures_of,
    spread,
    with_interval,
)
from medpfl.report.plain_table import literal, plain_table
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
from medpfl.report.words import data_name, folded, method_name, site_name

_MOST_ROWS = 30
_WORST_SHOWN = 10
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
    shown = _Shown(results, scores, measures_of(results))
    # Two-line heads and cells: the table fits 80 columns, which is what a log file has.
    table = plain_table(title=_title(results))
    table.add_column("site", no_wrap=True)
    for head in shown.heads:
        table.add_column(head, justify="right", overflow="fold")
    sites, fewer = shown.sites()
    for row in shown.site_rows(sites, width):
        table.add_row(*row)
    table.add_section()
    table.add_row(*shown.mean_row(), style="bold")
    worst, whose = shown.worst_row()
    table.add_row(*worst)
    notes = [*fewer, *whose, *shown.intervals(), *shown.alone()]
    table.caption = literal("\n".join(notes)) if notes else None
    return table


@dataclass(frozen=True)
class _Shown:
    """What the table is of.

    Attributes:
        results: of the run.
        scores: of its selected round.
        measures: of its task.
    """

    results: Results
    scores: Mapping[str, Any]
    measures: list[Measure]

    @cached_property
    def begun(self) -> Measure:
        """The first one, by which gains are."""
        return first(self.results)

    @cached_property
    def gains(self) -> dict[str, float]:
        """Over training alone, by site; empty where there is none to compare with."""
        if is_local(self.results):
            return {}
        return differences(self.scores, local_reference(self.results), self.begun)

    @cached_property
    def counted(self) -> list[Measure]:
        """Those which say of how many classes they are."""
        return counting_classes(self.measures, self.scores["sites"])

    @property
    def heads(self) -> list[str]:
        """Of all columns but the sites' names."""
        tested = "patients\ntest" if by_patient(self.results, self.scores["sites"]) else "n test"
        gains = [self._to_alone] if self.gains else []
        return [tested, *map(_head, self.measures), *(f"classes\nin {m.title}" for m in self.counted), *gains]

    @property
    def _to_alone(self) -> str:
        return change_head("to alone", self.begun).replace(" (", "\n(").replace(", ", ",\n")

    def sites(self) -> tuple[list[str], list[str]]:
        """Those that have a row, and a note if these are not all."""
        sites, begun = list(self.scores["sites"]), self.begun
        if len(sites) <= _MOST_ROWS:
            return sites, []
        values = site_scores(self.scores, begun.name)
        end = "lowest" if begun.better == "higher" else "highest"
        worst = sorted(sites, key=lambda site: begun.gain(values[site], 0) if site in values else inf)[:_WORST_SHOWN]
        return worst, [f"the {_WORST_SHOWN} sites with the {end} {begun.title}, of {len(sites)}"]

    def site_rows(self, sites: list[str], width: int) -> list[list[str | Text]]:
        """A row each; names are broken where they are longer than the other columns leave room for."""
        names = [printable(site_name(self.results, site)) for site in sites]
        needed = [_COUNT, *(_needed(m, _head(m)) for m in self.measures), *(_CLASSES for _ in self.counted)]
        needed += [max(map(len, self._to_alone.splitlines()))] if self.gains else []
        free = width - 2 - sum(2 + n for n in needed)
        if tight := max(map(len, names), default=0) > free:
            free += _INTERVAL
        rows: list[list[str | Text]] = []
        known = len(class_names(self.results))
        for site, name in zip(sites, names, strict=True):
            entry = self.scores["sites"][site]
            values = [with_interval(m, entry).replace(" [", "\n[" if tight else " [") for m in self.measures]
            classes = [classes_in(m, entry, known) for m in self.counted]
            tested = NONE if entry.get("n") is None else str(entry["n"])
            label, gain = Text(folded(name, max(1, free))), self._gain(self.gains.get(site))
            rows.append([label, tested, *values, *classes, *gain])
        return rows

    def mean_row(self) -> list[str | Text]:
        """Mean ± standard deviation."""
        mean, std = self.scores["mean"], self.scores["std"]
        means = [spread(m, mean.get(m.name), std.get(m.name)).replace(" ±", "\n±") for m in self.measures]
        gained = fmean(self.gains.values()) if self.gains else None
        return ["mean\n± sd", "", *means, *self._none, *self._gain(gained)]

    def worst_row(self) -> tuple[list[str | Text], list[str]]:
        """The worst values with the names of their sites; where one is too long, notes have these."""
        found = [worst_site(self.scores, m) for m in self.measures]
        values = [NONE if one is None else m.number(one[1]) for m, one in zip(self.measures, found, strict=True)]
        cells = [Text(value) for value in (*values, *self._none)]
        whose = [*("" if one is None else one[0] for one in found), *self._none]
        titles = [*(m.title for m in self.measures), *self._none]
        if self.gains:
            least = min(self.gains, key=self.gains.__getitem__)
            cells += self._gain(self.gains[least])
            whose.append(least)
            titles.append("to alone")
        if max(map(len, whose)) <= _CELL:
            named = [cell.append(f"\n{name}", style="default") for cell, name in zip(cells, whose, strict=True)]
            return ["worst\nsite", "", *named], []
        of: dict[str, list[str]] = {name: [] for name in whose if name}
        for title, name in zip(titles, whose, strict=True):
            if name:
                of[name].append(title)
        return ["worst", "", *cells], [f"worst in {', '.join(titles)}: {name}" for name, titles in of.items()]

    def intervals(self) -> list[str]:
        """What the intervals are by."""
        entries = self.scores["sites"].values()
        said = {by for m in self.measures if m.interval and (by := interval_by(m, entries))}
        return [f"95% CI{by}" for by in sorted(said)]

    def alone(self) -> list[str]:
        """What the last column is against."""
        return ["alone: the model that the site trained alone beside the run"] if self.gains else []

    @property
    def _none(self) -> list[str]:
        return [""] * len(self.counted)

    def _gain(self, gain: float | None) -> list[Text]:
        """A cell of the last column, in its colour, if there is that column."""
        return [_coloured(self.begun, gain)] if self.gains else []


def _head(measure: Measure) -> str:
    """Short words on a line of their own each."""
    interval = " [95% CI]" if measure.interval else ""
    unit = f"\n({measure.unit})" if measure.unit else ""
    return "\n".join(wrap(measure.title, _HEAD, break_long_words=False)) + interval + unit


def _needed(measure: Measure, head: str) -> int:
    return max(_WITH_INTERVAL if measure.interval else _VALUE, *map(len, head.splitlines()))


def _title(results: Results) -> Text:
    data, config = results["data"], results["config"]
    parts = [method_name(results), data_name(data), data.get("partition"), config.get("model")]
    text = ", ".join(str(part) for part in parts if part)
    chosen = results.get("selected_round")
    if results.get("selected_rounds"):
        return Text(f"{text}; each site's own round of {len(results['rounds'])}")
    return Text(text if chosen is None else f"{text}; round {chosen} of {len(results['rounds'])}")


def _coloured(measure: Measure, gain: float | None) -> Text:
    text = change(measure, gain)
    return Text(text, style={"+": "green", "-": "red"}.get(text[0], ""))
