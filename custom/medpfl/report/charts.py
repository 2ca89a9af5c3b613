"""Values by round and by site, as SVG with a description for those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from medpfl.core.measure import Measure
from medpfl.report.svg import (
    Scale,
    columns_of_values,
    dot,
    drawing,
    line,
    path,
    round_ticks,
    rows_of_values,
    shortened,
    text,
    text_width,
    ticks,
)

COLOURS = 9
"""As many as ``templates/page.css`` has."""
_LINE = 14
"""Height of a label."""
Print = Callable[[float], str]


def three_digits(value: float) -> str:
    """A share or a loss."""
    return f"{value:.3f}"


@dataclass(frozen=True)
class Curve:
    """One line of a chart: (round, value) and, for a band, (round, lowest, highest)."""

    name: str
    points: list[tuple[int, float]]
    band: list[tuple[int, float, float]] | None = None


def line_chart(
    title: str,
    curves: Sequence[Curve],
    level: tuple[str, float] | None = None,
    mark: tuple[str, int] | None = None,
    share: bool = False,
    number: Print = three_digits,
    over: str = "round",
) -> Markup:
    """Values per round.

    Args:
        title: what the vertical axis shows.
        curves: at least one, each with at least one point; named at their ends when there are several.
        level: name and value of a dashed horizontal line.
        mark: name and round of a vertical line.
        share: the values lie in [0, 1], and the axis shows no more than that.
        number: prints a value.
        over: what is counted instead of rounds.
    """
    named = len(curves) > 1
    names = [shortened(curve.name, 26) for curve in curves]
    right = 18 + max(map(text_width, names)) if named else 14
    left, top, bottom, width, height = 46, 22, 38, (420 + right) if named else 480, 280 if named else 250
    lows = [value for curve in curves for value in _extent(curve)] + ([level[1]] if level else [])
    rounds = [entry[0] for curve in curves for entry in curve.points] + ([mark[1]] if mark else [])
    steps = ticks(max(min(lows), 0) if share else min(lows), min(max(lows), 1) if share else max(lows))
    first, last = min(rounds), max(rounds)
    x = Scale(first if last > first else first - 1, last if last > first else first + 1, left + 6, width - right)
    y = Scale(steps[0], steps[-1], height - bottom, top)

    parts = rows_of_values(title, steps, y, left, width - right)
    for step in round_ticks(first, last):
        parts.append(text(x(step), height - bottom + 17, str(step), "middle", "tick"))
    parts.append(text((left + width - right) / 2, height - 4, over, "middle", "axis"))

    if mark:
        parts.append(line(x(mark[1]), top, x(mark[1]), height - bottom, "mark"))
        near_right = x(mark[1]) > (left + width - right) / 2
        at, anchor = (x(mark[1]) - 5, "end") if near_right else (x(mark[1]) + 5, "start")
        marks = [text(at, height - bottom - 6, mark[0], anchor, "tick halo")]
    else:
        marks = []
    for index, curve in enumerate(curves):
        if curve.band:
            outline = [(x(n), y(high)) for n, _, high in curve.band]
            outline += [(x(n), y(low)) for n, low, _ in reversed(curve.band)]
            parts.append(path(outline, "band", closed=True))
        points = [(x(n), y(value)) for n, value in curve.points]
        parts.append(path(points, f"curve c{index % COLOURS}{' again' if index >= COLOURS else ''}"))
        if len(points) == 1:
            parts.append(dot(*points[0], 3, f"f{index % COLOURS}"))
    if level:
        parts.append(line(left, y(level[1]), width - right, y(level[1]), "level"))
        # Above the line unless that would leave the plot.
        above = y(level[1]) - 6 > top + 8
        parts.append(
            text(left + 6, y(level[1]) + (-5 if above else 14), f"{level[0]} {number(level[1])}", css="tick halo")
        )
    parts += marks
    if named:
        ends = [y(curve.points[-1][1]) + 4 for curve in curves]
        for index, at in enumerate(labels_apart(ends, top + 4, height - bottom + 4)):
            parts.append(text(width - right + 6, at, names[index], css=f"t{index % COLOURS}"))
    return drawing(width, height, _told(title, curves, level, number, over), parts)


def _extent(curve: Curve) -> list[float]:
    values = [value for _, value in curve.points]
    for _, low, high in curve.band or []:
        values += (low, high)
    return values


def _told(title: str, curves: Sequence[Curve], level: tuple[str, float] | None, number: Print, over: str) -> str:
    ends = [(curve.name, dict.fromkeys((curve.points[0], curve.points[-1]))) for curve in curves]
    told = [f"{name}: {', '.join(f'{number(value)} in {over} {n}' for n, value in of)}" for name, of in ends]
    return f"{title} by {over}. {'; '.join(told)}." + (f" {level[0]}: {number(level[1])}." if level else "")


def labels_apart(positions: list[float], top: float, bottom: float) -> list[float]:
    """Labels moved as little as needed so that none covers another, and kept between top and bottom if they fit."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    placed = list(positions)
    for before, this in pairwise(order):
        placed[this] = max(placed[this], placed[before] + _LINE)
    limit = bottom
    for this in reversed(order):
        placed[this] = min(placed[this], limit)
        limit = placed[this] - _LINE
    lift = max(0.0, top - placed[order[0]])
    return [position + lift for position in placed]


def strip_plot(
    title: str,
    rows: Sequence[tuple[str, dict[str, float]]],
    level: tuple[str, float] | None = None,
    number: Print = three_digits,
) -> Markup:
    """One row for each algorithm, one dot for each site, a stroke at the mean, a dashed line at ``level``.

    Args:
        title: what the horizontal axis shows.
        rows: label and the value of every site, at least one value in all.
        level: name and value of the dashed line.
        number: prints a value.
    """
    labels = [shortened(label, 30) for label, _ in rows]
    left, top, step, right = 14 + max(map(text_width, labels)), 26, 28, 16
    width, height = left + 440, top + step * len(rows) + 40
    values = [value for _, sites in rows for value in sites.values()] + ([level[1]] if level else [])
    steps = ticks(min(values), max(values), 6)
    x = Scale(steps[0], steps[-1], left + 6, width - right)
    floor = top + step * len(rows)
    parts = columns_of_values(title, steps, x, top, floor, (left + width - right) / 2)
    if level:
        parts.append(line(x(level[1]), top - 6, x(level[1]), floor, "level"))
        anchor = "end" if x(level[1]) > (left + width) / 2 else "start"
        parts.append(text(x(level[1]), top - 12, f"{level[0]} {number(level[1])}", anchor, "tick"))
    told = []
    for index, (label, sites) in enumerate(rows):
        middle = top + step * (index + 0.5)
        parts.append(text(left - 6, middle + 4, labels[index], "end"))
        parts += [dot(x(value), middle, 4.5, "site", f"{site}: {number(value)}") for site, value in sites.items()]
        if sites:
            mean = sum(sites.values()) / len(sites)
            parts.append(line(x(mean), middle - 9, x(mean), middle + 9, "mean"))
            ends = [number(end) for end in (min(sites.values()), max(sites.values()))]
            told.append(f"{label}: {ends[0]} to {ends[1]}, mean {number(mean)}")
    return drawing(width, height, f"{title}, a dot for each site. {'; '.join(told)}.", parts)


def interval_plot(title: str, rows: Sequence[tuple[str, float, float, float]], measure: Measure) -> Markup:
    """One row for each site: a dot at its value, a line over the interval, and a dashed line at 0 for all.

    Args:
        title: what the horizontal axis shows.
        rows: label, and a gain with its interval's ends; those of a share are shown in percentage points.
        measure: whose gains they are.
    """
    labels = [shortened(label, 30) for label, *_ in rows]
    left, top, step, right = 14 + max(map(text_width, labels)), 12, 20, 16
    width, floor = left + 440, top + step * len(rows)
    scale = 100 if measure.share else 1
    ends = [scale * end for _, _, *interval in rows for end in interval]
    steps = ticks(min(0, *ends), max(0, *ends), 6)
    x = Scale(steps[0], steps[-1], left + 6, width - right)
    parts = columns_of_values(title, steps, x, top, floor, (left + width - right) / 2)
    parts.append(line(x(0), top - 6, x(0), floor, "level"))
    told = []
    for index, (label, value, low, high) in enumerate(rows):
        middle = top + step * (index + 0.5)
        said = f"{label}: {measure.signed(value)}, {measure.signed(low)} to {measure.signed(high)}"
        parts.append(text(left - 6, middle + 4, labels[index], "end"))
        parts.append(line(x(scale * low), middle, x(scale * high), middle, "interval"))
        parts.append(dot(x(scale * value), middle, 3.5, "f0", said))
        told.append(said)
    return drawing(width, floor + 40, f"{title}, with 95 % intervals. {'; '.join(told)}.", parts)
