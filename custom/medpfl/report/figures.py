"""The drawings of a report. Each function returns SVG for the page, with a description for those who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from medpfl.report.svg import (
    Scale,
    dot,
    drawing,
    line,
    number,
    path,
    round_ticks,
    shortened,
    text,
    text_width,
    tick_label,
    ticks,
)

COLOURS = 9
_LEVELS = 12


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
) -> str:
    """Values per round.

    Args:
        title: what the vertical axis shows.
        curves: at least one, each with at least one point; named at their ends when there are several.
        level: name and value of a dashed horizontal line.
        mark: name and round of a vertical line.
        share: the values lie in [0, 1], and the axis shows no more than that.
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

    parts = [text(0, 11, title, css="axis")]
    for step in steps:
        parts.append(line(left, y(step), width - right, y(step), "grid"))
        parts.append(text(left - 6, y(step) + 4, tick_label(step, steps), "end", "tick"))
    for step in round_ticks(first, last):
        parts.append(text(x(step), height - bottom + 17, str(step), "middle", "tick"))
    parts.append(text((left + width - right) / 2, height - 4, "round", "middle", "axis"))

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
        parts.append(text(left + 6, y(level[1]) + (-5 if above else 14), f"{level[0]} {level[1]:.3f}", css="tick halo"))
    parts += marks
    if named:
        ends = [y(curve.points[-1][1]) + 4 for curve in curves]
        for index, at in enumerate(_apart(ends, 14, top + 4, height - bottom + 4)):
            parts.append(text(width - right + 6, at, names[index], css=f"t{index % COLOURS}"))
    return drawing(width, height, _told(title, curves, level), parts)


def _extent(curve: Curve) -> list[float]:
    values = [value for _, value in curve.points]
    for _, low, high in curve.band or []:
        values += (low, high)
    return values


def _told(title: str, curves: Sequence[Curve], level: tuple[str, float] | None) -> str:
    told = [
        f"{curve.name}: {curve.points[0][1]:.3f} in round {curve.points[0][0]}, "
        f"{curve.points[-1][1]:.3f} in round {curve.points[-1][0]}"
        for curve in curves
    ]
    return f"{title} by round. {'; '.join(told)}." + (f" {level[0]}: {level[1]:.3f}." if level else "")


def _apart(positions: list[float], gap: float, top: float, bottom: float) -> list[float]:
    """Labels moved as little as needed so that none covers another, and kept between top and bottom if they fit."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    placed = list(positions)
    for before, this in pairwise(order):
        placed[this] = max(placed[this], placed[before] + gap)
    limit = bottom
    for this in reversed(order):
        placed[this] = min(placed[this], limit)
        limit = placed[this] - gap
    lift = max(0.0, top - placed[order[0]])
    return [position + lift for position in placed]


def strip_plot(title: str, rows: Sequence[tuple[str, dict[str, float]]], level: tuple[str, float] | None = None) -> str:
    """One row for each algorithm, one dot for each site, a stroke at the mean, a dashed line at ``level``.

    Args:
        title: what the horizontal axis shows.
        rows: label and the value of every site, at least one value in all.
        level: name and value of the dashed line.
    """
    labels = [shortened(label, 30) for label, _ in rows]
    left, top, step, right = 14 + max(map(text_width, labels)), 26, 28, 16
    width, height = left + 440, top + step * len(rows) + 40
    values = [value for _, sites in rows for value in sites.values()] + ([level[1]] if level else [])
    steps = ticks(min(values), max(values), 6)
    x = Scale(steps[0], steps[-1], left + 6, width - right)
    floor = top + step * len(rows)
    parts = []
    for value in steps:
        parts.append(line(x(value), top, x(value), floor, "grid"))
        parts.append(text(x(value), floor + 17, tick_label(value, steps), "middle", "tick"))
    parts.append(text((left + width - right) / 2, floor + 36, title, "middle", "axis"))
    if level:
        parts.append(line(x(level[1]), top - 6, x(level[1]), floor, "level"))
        anchor = "end" if x(level[1]) > (left + width) / 2 else "start"
        parts.append(text(x(level[1]), top - 12, f"{level[0]} {level[1]:.3f}", anchor, "tick"))
    told = []
    for index, (label, sites) in enumerate(rows):
        middle = top + step * (index + 0.5)
        parts.append(text(left - 6, middle + 4, labels[index], "end"))
        parts += [dot(x(value), middle, 4.5, "site", f"{site}: {value:.3f}") for site, value in sites.items()]
        if sites:
            mean = sum(sites.values()) / len(sites)
            parts.append(line(x(mean), middle - 9, x(mean), middle + 9, "mean"))
            told.append(f"{label}: {min(sites.values()):.3f} to {max(sites.values()):.3f}, mean {mean:.3f}")
    return drawing(width, height, f"{title}, a dot for each site. {'; '.join(told)}.", parts)


def partition_plot(sites: dict[str, dict[str, int]], classes: Sequence[str]) -> str:
    """Class by site; the area of a dot is proportional to the number of images (as figure 5 of the FedAP paper)."""
    cell = max(10, min(30, 560 // max(len(sites), 1)))
    slanted = any(text_width(site) > cell - 4 for site in sites)
    names = [shortened(site, 18) for site in sites]
    kinds = [shortened(str(name), 18) for name in classes]
    left = 26 + max(map(text_width, kinds))
    foot = 12 + max(map(text_width, names)) if slanted else 20
    tall = max(18, min(26, cell))
    floor = 4 + tall * len(classes)
    width, height = left + cell * len(sites) + 8, floor + foot + 18
    most = max((count for counts in sites.values() for count in counts.values()), default=0)
    parts = [text(11, floor / 2, "class", "middle", "axis", turn=-90)]
    for row, kind in enumerate(kinds):
        middle = 4 + tall * (row + 0.5)
        parts.append(line(left, middle, width - 8, middle, "grid"))
        parts.append(text(left - 7, middle + 4, kind, "end", "tick"))
    for column, (site, counts) in enumerate(sites.items()):
        middle = left + cell * (column + 0.5)
        # With very many sites every label would cover the next.
        if not slanted:
            parts.append(text(middle, floor + 17, names[column], "middle", "tick"))
        elif column % math.ceil(13 / cell) == 0:
            parts.append(text(middle + 4, floor + 9, names[column], "end", "tick", turn=-90))
        for row, kind in enumerate(classes):
            if count := counts.get(kind, 0):
                radius = max(1.0, (min(cell, tall) / 2 - 0.5) * math.sqrt(count / most))
                hover = f"{site}, class {kind}: {count}"
                parts.append(dot(middle, 4 + tall * (row + 0.5), radius, "images", hover))
    parts.append(text(left + cell * len(sites) / 2, height - 2, f"site (largest dot: {most})", "middle", "axis"))
    held = [sum(1 for count in counts.values() if count) for counts in sites.values()]
    described = (
        f"Images of {len(classes)} classes at {len(sites)} sites. A site holds {min(held)} to {max(held)} classes; "
        f"the largest dot stands for {most} images."
    )
    return drawing(max(width, 170), height, described, parts)


def mixing_heat_map(sites: Sequence[str], matrix: Sequence[Sequence[float]]) -> str:
    """Row: the site that receives; column: the site that contributes.

    The diagonal (what a site keeps of its own) is often far larger than the rest, so it is not coloured but framed;
    the colour scale runs over the off-diagonal weights only.
    """
    size = len(sites)
    cell = 44 if size <= 10 else max(6, min(26, 520 // size))
    written = size <= 10
    names = [shortened(site, 18) for site in sites]
    every = math.ceil(13 / cell)
    left, top = 30 + max(map(text_width, names)), 26 + max(map(text_width, names))
    rest = [value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j]
    low, high = (min(rest), max(rest)) if rest else (0.0, 0.0)
    flat = high - low <= 1e-6 * max(high, 1e-12)
    parts = [
        text(left + cell * size / 2, 11, "contributes", "middle", "axis"),
        text(11, top + cell * size / 2, "receives", "middle", "axis", turn=-90),
    ]
    for index, name in enumerate(names):
        if index % every == 0:
            at = cell * (index + 0.5) + 4
            parts.append(text(left - 6, top + at, name, "end", "tick"))
            parts.append(text(left + at, top - 6, name, "start", "tick", turn=-90))
    # One path for each shade instead of one element for each cell keeps 100 sites small.
    shades: dict[int, list[str]] = {}
    labels, frames = [], []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            x, y = left + cell * j, top + cell * i
            square = f"M{number(x)} {number(y)}h{cell - 1}v{cell - 1}h{1 - cell}z"
            shade = _LEVELS // 2 if flat else round(_LEVELS * (value - low) / (high - low))
            (frames if i == j else shades.setdefault(shade, [])).append(square)
            if written:
                css = "own" if i == j else "deep" if shade > 0.55 * _LEVELS else ""
                labels.append(text(x + cell / 2, y + cell / 2 + 4, _weight(value), "middle", css))
    for shade, squares in sorted(shades.items()):
        parts.append(f'<path class="heat" fill-opacity="{_opacity(shade)}" d="{"".join(squares)}"/>')
    parts.append(f'<path class="diagonal" d="{"".join(frames)}"/>')
    parts += labels
    width, height = left + cell * size + 6, top + cell * size + 30
    if rest and not flat:
        swatches = [
            f'<path class="heat" fill-opacity="{_opacity(shade)}" '
            f'd="M{number(left + 44 + 9 * shade)} {number(height - 15)}h9v11h-9z"/>'
            for shade in range(_LEVELS + 1)
        ]
        end = left + 44 + 9 * (_LEVELS + 1)
        parts += [text(left + 39, height - 5, _weight(low), "end", "tick"), *swatches]
        parts.append(text(end + 5, height - 5, _weight(high), "start", "tick"))
        width = max(width, end + 44)
    diagonal = [row[i] for i, row in enumerate(matrix)]
    described = (
        f"Mixing matrix of {size} sites. Own weight {_range(diagonal)}"
        + (f"; weight of each other site {_range(rest)}" if rest else "")
        + "."
    )
    return drawing(width, height, described, parts)


def _opacity(shade: int) -> str:
    return f"{0.05 + 0.9 * shade / _LEVELS:.2f}"


def _weight(value: float) -> str:
    return (
        f"{value:.3f}".removeprefix("0") if 0 < value < 0.9995 else f"{value:g}" if value in (0, 1) else f"{value:.2f}"
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"


def mixing_caption(matrix: Sequence[Sequence[float]]) -> str:
    """What the heat map shows, with the diagonal and the range of the rest in numbers."""
    own = [row[i] for i, row in enumerate(matrix)]
    rest = [value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j]
    caption = (
        "A row is the site that receives, a column the site that contributes; every row sums to 1. "
        f"The framed diagonal is what a site keeps of its own (λ in FedAP): {_range(own)}."
    )
    return f"{caption} The colours cover only the other weights, {_range(rest)}." if rest else caption
