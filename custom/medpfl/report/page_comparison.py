"""What the page says of runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from markupsafe import Markup

from medpfl.core.measure import LOSS, Measure
from medpfl.report import judged
from medpfl.report.best_variant import advice
from medpfl.report.charts import Curve, line_chart, strip_plot
from medpfl.report.compare_table import comparison_note, comparison_rows
from medpfl.report.every_pair import TITLE, pair_note, pair_rows
from medpfl.report.measures import first, selecting
from medpfl.report.page_parts import Part, Section, Table
from medpfl.report.page_run import courses_of, partition
from medpfl.report.reading import round_series
from medpfl.report.side_by_side import Comparison, Groups, alone
from medpfl.report.trained_alone import REFERENCE

Level = tuple[str, float] | None
"""Name and value of the dashed line: local training, or each run's own rival."""


def comparison_section(comparison: Comparison, groups: Groups) -> Section:
    """The verdict, the table and the figures of a comparison, and what the sites hold under each seed."""
    local = _local_level(comparison, first(comparison))
    return Section("", _verdict(comparison), list(_parts(comparison, groups, local)))


def _parts(comparison: Comparison, groups: Groups, local: Level) -> Iterator[Part]:
    seeds = comparison["seeds"]
    table = Table("Algorithms compared", *comparison_rows(comparison))
    yield Part(table=table, note=comparison_note(comparison))
    heads, rows = judged.judged_rows(comparison)
    if rows:
        gained = Table("Gains over training alone, and their tests", heads, rows, numbers=range(2, len(heads)))
        yield Part(judged.TITLE, table=gained, note=judged.judged_note(comparison))
    strips = [(g["label"], {k: v for k, v in g["sites"].items() if v is not None}) for g in comparison["groups"]]
    measure = first(comparison)
    if any(sites for _, sites in strips):
        dashed = f", the dashed line the mean of {local[0]}" if local else ""
        yield Part(
            "Every site",
            figure=strip_plot(f"test {measure.titled}", strips, local, measure.number),
            note=f"A dot is a site (its mean over seeds), the stroke the mean over sites{dashed}.",
        )
    by = _selecting(groups, measure)
    local = _local_level(comparison, by)
    if charts := _courses(groups, by, local):
        over = "sites and seeds" if len(seeds) > 1 else "sites"
        dashed = f" The dashed line is the test {by.title} of {local[0]}." if local else ""
        yield Part("Course of training", charts=charts, note=f"Means over {over}.{dashed}")
    runs = next(iter(groups.values())).items()
    splits = [partition(run, f"Seed {seed}. " if len(seeds) > 1 else "") for seed, run in runs]
    heads, rows = pair_rows(comparison)
    if rows:
        each = Table("Gains of a row over a column", heads, rows)
        yield Part(TITLE, table=each, note=pair_note(comparison))
    yield Part("Who has which images", beside=splits)
    yield Part("Each run")


def _courses(groups: Groups, measure: Measure, local: Level) -> list[Markup]:
    """Means over sites and seeds by round, a curve for each group."""
    charts = []
    for course in courses_of(measure):
        curves = []
        for label, members in groups.items():
            by_round: dict[int, list[float]] = {}
            for run in members.values():
                for n, values in round_series(run, *course.keys):
                    by_round.setdefault(n, []).append(fmean(values))
            if by_round:
                curves.append(Curve(label, [(n, fmean(values)) for n, values in sorted(by_round.items())]))
        if curves:
            level = local if course.measure else None
            charts.append(line_chart(course.title, curves, level, share=course.share, number=course.number))
    return charts


def _selecting(groups: Groups, first: Measure) -> Measure:
    """The measure by which all select their round; the first where they do not agree."""
    by = {selecting(run) for by_seed in groups.values() for run in by_seed.values()}
    return by.pop() if len(by) == 1 else first


def _verdict(comparison: Comparison) -> str:
    measure = first(comparison)
    if (comparison.get("one_class") or {}).get("meaningless"):
        return " ".join(advice(comparison))
    means = [
        (group, mean) for group in comparison["groups"] if (mean := group["measures"][measure.name]["mean"]) is not None
    ]
    ranked = sorted(means, key=lambda pair: -measure.gain(pair[1], 0))
    if not ranked:
        return f"No {measure.title} was measured."
    best, mean = ranked[0]
    most = "highest" if measure.better == "higher" else "lowest"
    reaches = f"has the {most} mean {measure.title}," if len(ranked) > 1 else f"reaches a mean {measure.title} of"
    text = f"{best['label']} {reaches} {measure.said(mean)}"
    if best["worst"]["mean"] is not None:
        text += f" ({measure.said(best['worst']['mean'])} at its worst site)"
    if best["algorithm"] == "local" and any(group["algorithm"] != "local" for group, _ in ranked):
        text += ": here no federated method does better than each site training alone"
    elif best["algorithm"] != "local" and (reached := _alone_beside(best, measure.name)) is not None:
        label = best["to_local"]["baseline"]
        named = "its own rival" if label == REFERENCE else f"{label[0].lower()}{label[1:]}"
        text += f"; {named} reaches {measure.said(reached)}"
    return " ".join([f"{text}.", *advice(comparison)])


def _alone_beside(group: Mapping[str, Any], measure: str) -> float | None:
    """What local training of the same network reaches, or the own rival."""
    reached = alone(group["to_local"], measure)
    return reached and reached["mean"]


def _local_level(comparison: Comparison, measure: Measure) -> Level:
    if measure == LOSS:  # of tests there is none
        return None
    paired = [group["to_local"] for group in comparison["groups"] if group["to_local"]]
    levels = {
        (of["baseline"], reached["mean"])
        for of in paired
        if (reached := alone(of, measure.name)) and reached["mean"] is not None
    }
    if not paired:
        runs = [group["measures"][measure.name] for group in comparison["groups"] if group["algorithm"] == "local"]
        levels = {("", of["mean"]) for of in runs if of["mean"] is not None}
    if len(levels) != 1:
        return None  # each network, or each run, has its own
    baseline, mean = levels.pop()
    return REFERENCE if baseline == REFERENCE else "local training", mean
