"""What a simulation's sites have seen of their tests: cases with outlines, and whether confidence can be trusted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from medpfl.core.numbers_in_words import count
from medpfl.report.measures import first, printed
from medpfl.report.page_parts import Part, Picture
from medpfl.report.reading import Results
from medpfl.report.svg import Scale, dot, drawing, line, path, text, tick_label, ticks
from medpfl.report.words import site_name

_SITES = 10
"""With pictures; of more, those with the worst cases."""


def detail_parts(run: Results) -> Iterator[Part]:
    """Pictures of a segmentation's cases; a classification's reliability."""
    found: Mapping[str, Any] = run.get("detail") or {}
    if shown := {site: of["pictures"] for site, of in found.items() if of.get("pictures")}:
        yield _cases(run, shown)
    if bins := [entry for of in found.values() for entry in of.get("reliability") or ()]:
        note = (
            "How often a prediction is right beside how sure the model says it is, over all sites' test cases; a dot "
            "is a tenth of the scale, the dashed line what a calibrated model would have. Below the line the models "
            "are surer than they should be."
        )
        yield Part("Can the confidence be trusted?", figure=reliability_plot(_pooled(bins)), note=note, width=340)


def _cases(run: Results, shown: Mapping[str, Sequence[Mapping[str, Any]]]) -> Part:
    measure = first(run)
    worst = sorted(shown, key=lambda site: min(picture["dice"] for picture in shown[site]))[:_SITES]
    pictures = [
        Part(
            picture=Picture(f"{site}, {p['which']} case", p["picture"]),
            note=f"{site_name(run, site)}, {p['which']} (case {p['case']}): {printed(measure, p['dice'])}",
            width=240,
        )
        for site in shown
        if site in worst
        for p in shown[site]
    ]
    note = (
        "The truth is outlined in blue, the prediction in orange, on the slice with most of the structure: each site's "
        f"best, median and worst test case by {measure.title}."
    )
    if len(shown) > _SITES:
        note += f" The {_SITES} sites with the worst cases."
    return Part("Test cases", beside=[*pictures, Part(note=note)])


def _pooled(bins: Sequence[Mapping[str, float]]) -> list[tuple[float, float, int]]:
    """Confidence, accuracy and number of cases of each tenth of the scale."""
    of_tenth: dict[int, list[Mapping[str, float]]] = defaultdict(list)
    for entry in bins:
        of_tenth[min(int(entry["confidence"] * 10), 9)].append(entry)
    found = []
    for _, entries in sorted(of_tenth.items()):
        n = sum(e["n"] for e in entries)
        means = (sum(e["n"] * e[key] for e in entries) / n for key in ("confidence", "accuracy"))
        found.append((*means, int(n)))
    return found


def reliability_plot(points: Sequence[tuple[float, float, int]]) -> Markup:
    """A reliability diagram.

    Args:
        points: confidence, accuracy and number of cases, in order of confidence.
    """
    left, top, bottom, width, height = 46, 12, 40, 340, 320
    steps = ticks(0, 1)
    x, y = Scale(0, 1, left, width - 14), Scale(0, 1, height - bottom, top)
    parts = []
    for step in steps:
        parts.append(line(left, y(step), width - 14, y(step), "grid"))
        parts.append(text(left - 6, y(step) + 4, tick_label(step, steps), "end", "tick"))
        parts.append(text(x(step), height - bottom + 17, tick_label(step, steps), "middle", "tick"))
    parts.append(line(x(0), y(0), x(1), y(1), "level"))
    parts.append(path([(x(c), y(a)) for c, a, _ in points], "curve c0"))
    parts += [
        dot(x(c), y(a), 4.5, "f0", f"{count(n, 'case')}: confidence {c:.2f}, right {a:.2f}") for c, a, n in points
    ]
    parts.append(text((left + width - 14) / 2, height - 4, "confidence", "middle", "axis"))
    parts.append(text(12, (top + height - bottom) / 2, "share that is right", "middle", "axis", turn=-90))
    told = "; ".join(f"{c:.2f}: {a:.2f}" for c, a, _ in points)
    return drawing(width, height, f"Share of right predictions by confidence. {told}.", parts)
