"""A measure over the values of a swept setting, as SVG with a description for those who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from medpfl.core.measure import Measure
from medpfl.report.charts import COLOURS, labels_apart
from medpfl.report.svg import Scale, dot, drawing, line, path, rows_of_values, shortened, text, text_width, ticks

Point = tuple[float, float]


@dataclass(frozen=True)
class SweptCurve:
    """One method over the values.

    Attributes:
        name: of the method.
        colour: number of the page's.
        points: place on the axis and mean over sites and seeds, where it is known.
        spread: standard deviation over seeds at each of the points, None where there is one seed.
        sites: by site its mean over seeds at each place where it has one.
    """

    name: str
    colour: int
    points: Sequence[Point]
    spread: Sequence[float | None]
    sites: Sequence[tuple[str, Sequence[Point]]] = ()


def sweep_chart(
    title: str,
    axis: str,
    places: Sequence[tuple[float, str]],
    curves: Sequence[SweptCurve],
    measure: Measure,
    *,
    extent: tuple[float, float],
    lines: bool = True,
) -> Markup:
    """Means with whiskers of a standard deviation over seeds, and every site faintly behind them.

    Args:
        title: above the figure.
        axis: what is swept.
        places: each value's place on the axis, and what stands there.
        curves: at least one; named at their ends where there are several.
        measure: what is shown.
        extent: lowest and highest value, the same for figures that are to be compared.
        lines: sites are lines; else dots, where a site at one value is none at the next.
    """
    named = len(curves) > 1
    names = [shortened(curve.name, 26) for curve in curves]
    right = 18 + max(map(text_width, names)) if named else 20
    left, top, bottom, width, height = 46, 22, 38, (400 + right) if named else 400, 280
    low, high = extent
    steps = ticks(max(low, 0) if measure.share else low, min(high, 1) if measure.share else high)
    ends = [place for place, _ in places]
    x = Scale(min(ends), max(ends), left + 14, width - right - 6)
    y = Scale(steps[0], steps[-1], height - bottom, top)
    parts = rows_of_values(title, steps, y, left, width - right)
    parts += _ticks(places, x, height - bottom)
    parts.append(text((left + width - right) / 2, height - 4, axis, "middle", "axis"))
    for curve in curves:
        css = curve.colour % COLOURS
        for site, points in curve.sites:
            at = [(x(place), y(value)) for place, value in points]
            if lines and len(at) > 1:
                parts.append(path(at, f"faint c{css}"))
            else:
                parts += [
                    dot(*spot, 2.5, f"pale f{css}", f"{site}: {measure.number(value)}")
                    for spot, (_, value) in zip(at, points, strict=True)
                ]
    for curve in curves:
        css = curve.colour % COLOURS
        at = [(x(place), y(value)) for place, value in curve.points]
        for (place, value), sd in zip(curve.points, curve.spread, strict=True):
            if sd:
                parts.append(line(x(place), y(value - sd), x(place), y(value + sd), f"curve c{css}"))
        parts.append(path(at, f"curve c{css}{' again' if curve.colour >= COLOURS else ''}"))
        said = [f"{curve.name}, {_name(places, place)}: {measure.number(value)}" for place, value in curve.points]
        parts += [dot(*spot, 3.5, f"f{css}", words) for spot, words in zip(at, said, strict=True)]
    if named:
        last = [y(curve.points[-1][1]) + 4 for curve in curves]
        for curve, at, name in zip(curves, labels_apart(last, top + 4, height - bottom + 4), names, strict=True):
            parts.append(text(width - right + 6, at, name, css=f"t{curve.colour % COLOURS}"))
    return drawing(width, height, _told(title, axis, places, curves, measure), parts)


def _ticks(places: Sequence[tuple[float, str]], x: Scale, floor: float) -> list[str]:
    """What stands at the values; those that would touch the one before are left out, the last is not."""
    shown: list[str] = []
    free = -1e9
    for index, (place, words) in enumerate(sorted(places)):
        half = text_width(words) / 2
        last = index == len(places) - 1
        if x(place) - half >= free or last:
            if last and x(place) - half < free and shown:
                shown.pop()
            shown.append(text(x(place), floor + 17, words, "middle", "tick"))
            free = x(place) + half + 6
    return shown


def _name(places: Sequence[tuple[float, str]], place: float) -> str:
    return next(words for at, words in places if at == place)


def _told(
    title: str, axis: str, places: Sequence[tuple[float, str]], curves: Sequence[SweptCurve], measure: Measure
) -> str:
    told = [
        f"{curve.name}: "
        + ", ".join(f"{measure.number(value)} at {_name(places, place)}" for place, value in curve.points)
        for curve in curves
    ]
    return f"{title} over {axis}. {'; '.join(told)}."
