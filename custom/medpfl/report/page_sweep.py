"""What the page says of a swept setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medpfl.core.measure import Measure
from medpfl.report.measures import first
from medpfl.report.page_parts import Part, Section, Table
from medpfl.report.sweep import Sweeping, Swept, sweep_note, sweep_notes, sweep_rows
from medpfl.report.sweep_chart import SweptCurve, sweep_chart
from medpfl.report.sweep_chosen import chosen_in_words, chosen_note, chosen_rows


def sweep_section(found: Swept) -> Section:
    """Which value is best for each method, the curves of all of them, each one's sites, and the table."""
    return Section("", _verdict(found), list(_parts(found)))


def _parts(found: Swept) -> Iterator[Part]:
    sweeping, measure = Sweeping.read(found), first(found)
    places = [(place, sweeping.tick(k)) for k, place in enumerate(sweeping.places)]
    curves = [_curve(k, group, sweeping, measure) for k, group in enumerate(found["groups"])]
    known = [curve for curve in curves if curve.points]
    title = f"test {measure.titled}"
    if known:
        means = [SweptCurve(c.name, c.colour, c.points, c.spread) for c in known]
        several = len(found["seeds"]) > 1
        whiskers = " Whiskers are a standard deviation over seeds." if several else ""
        yield Part(
            "All methods",
            figure=sweep_chart(title, sweeping.title, places, means, measure, extent=_extent(means)),
            note=f"Means over sites{' and seeds' if several else ''}.{whiskers}",
        )
        extent = _extent(known)
        charts = [
            sweep_chart(
                f"{c.name}: {title}",
                sweeping.title,
                places,
                [c],
                measure,
                extent=extent,
                lines=not sweeping.other_sites,
            )
            for c in known
        ]
        faint = "A pale dot is a site" if sweeping.other_sites else "A faint line is a site"
        yield Part("Every site", charts=charts, note=f"{faint}{' (its mean over seeds)' if several else ''}.")
    heads, rows = chosen_rows(found)
    if rows:
        yield Part("Chosen on validation data", table=Table("Chosen values", heads, rows), note=chosen_note(found))
    elif told := chosen_note(found):
        yield Part("Chosen on validation data", note=told)
    heads, rows = sweep_rows(found)
    yield Part("All figures", table=Table("The swept setting", heads, rows), note=sweep_note(found))
    if notes := sweep_notes(found):
        yield Part("Notes", lines=notes)


def _curve(index: int, group: dict[str, Any], sweeping: Sweeping, measure: Measure) -> SweptCurve:
    means = [point["measures"][measure.name] for point in group["points"]]
    known = [k for k in sorted(range(len(means)), key=sweeping.places.__getitem__) if means[k]["mean"] is not None]
    names = dict.fromkeys(site for point in group["points"] for site in point["sites"])
    sites = [
        (
            name,
            [
                (sweeping.places[k], value)
                for k in known
                if (value := group["points"][k]["sites"].get(name)) is not None
            ],
        )
        for name in names
    ]
    return SweptCurve(
        group["label"],
        index,
        [(sweeping.places[k], means[k]["mean"]) for k in known],
        [means[k]["sd"] for k in known],
        [(name, points) for name, points in sites if points],
    )


def _extent(curves: list[SweptCurve]) -> tuple[float, float]:
    values = [value for curve in curves for _, points in curve.sites for _, value in points]
    for curve in curves:
        for (_, value), sd in zip(curve.points, curve.spread, strict=True):
            values += (value - (sd or 0), value + (sd or 0))
    return min(values), max(values)


def _verdict(found: Swept) -> str:
    """Of every method what its test says at all values, and at those that validation data choose."""
    sweeping, measure = Sweeping.read(found), first(found)
    blind = {k for k, of in enumerate(found.get("one_class") or ()) if of and of["meaningless"]}
    sentences = []
    for group in found["groups"]:
        means = [(point["measures"][measure.name]["mean"], k) for k, point in enumerate(group["points"])]
        known = [(measure.gain(mean, 0), mean, k) for mean, k in means if mean is not None and k not in blind]
        if not known:
            continue
        best, worst = max(known), min(known)
        if len(known) == 1:
            sentences.append(f"{group['label']}: {measure.said(best[1])} at {sweeping.label(best[2])} alone.")
        elif best[1] == worst[1]:
            every = "every value" if len(known) == len(means) else "every value with figures"
            sentences.append(f"{group['label']}: {measure.said(best[1])} at {every}.")
        else:
            sentences.append(
                f"{group['label']}: from {measure.said(worst[1])} at {sweeping.label(worst[2])} to "
                f"{measure.said(best[1])} at {sweeping.label(best[2])}{_chosen(group, sweeping, measure)}."
            )
    if blind:
        at = ", ".join(sweeping.label(k) for k in sorted(blind))
        sentences.append(f"At most sites all test cases are of one class at {at}: no {measure.title} is told of these.")
    seeds = "" if len(found["seeds"]) > 1 else " One seed: small differences may be chance."
    return " ".join(sentences or [f"No {measure.title} was measured."]) + seeds


def _chosen(group: dict[str, Any], sweeping: Sweeping, measure: Measure) -> str:
    if not group.get("chosen") or not (values := chosen_in_words(group, sweeping)):
        return ""
    return f"; {measure.said(group['chosen']['measure']['mean'])} where validation data choose ({values})"
