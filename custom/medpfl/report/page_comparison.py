"""What the page says of runs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from markupsafe import Markup

from medpfl.report.best_variant import advice
from medpfl.report.charts import Curve, line_chart, strip_plot
from medpfl.report.compare_table import comparison_note, comparison_rows
from medpfl.report.page_parts import Part, Section, Table
from medpfl.report.page_run import COURSES, partition
from medpfl.report.reading import Results, round_series
from medpfl.report.side_by_side import Comparison

Groups = dict[str, dict[Any, Results]]
"""Label to the group's runs by seed."""

Level = tuple[str, float] | None
"""Name and value of the dashed line that local training is."""


def comparison_section(comparison: Comparison, groups: Groups) -> Section:
    """The verdict, the table and the figures of a comparison, and what the sites hold under each seed."""
    local = _local_level(comparison)
    return Section("", _verdict(comparison, local), list(_parts(comparison, groups, local)))


def _parts(comparison: Comparison, groups: Groups, local: Level) -> Iterator[Part]:
    seeds = comparison["seeds"]
    table = Table("Algorithms compared", *comparison_rows(comparison))
    yield Part(table=table, note=comparison_note(comparison))
    strips = [(g["label"], {k: v for k, v in g["sites"].items() if v is not None}) for g in comparison["groups"]]
    if any(sites for _, sites in strips):
        dashed = ", the dashed line the mean of local training" if local else ""
        yield Part(
            "Every site",
            figure=strip_plot("test accuracy", strips, local),
            note=f"A dot is a site (its mean over seeds), the stroke the mean over sites{dashed}.",
        )
    if charts := _courses(groups, local):
        over = "sites and seeds" if len(seeds) > 1 else "sites"
        dashed = " The dashed line is the test accuracy of local training." if local else ""
        yield Part("Course of training", charts=charts, note=f"Means over {over}.{dashed}")
    runs = next(iter(groups.values())).items()
    splits = [partition(run, f"Seed {seed}. " if len(seeds) > 1 else "") for seed, run in runs]
    yield Part("Who has which images", beside=splits)
    yield Part("Each run")


def _courses(groups: Groups, local: Level) -> list[Markup]:
    """Means over sites and seeds by round, a curve for each group."""
    charts = []
    for title, keys, share in COURSES:
        curves = []
        for label, members in groups.items():
            by_round: dict[int, list[float]] = {}
            for run in members.values():
                for n, values in round_series(run, *keys):
                    by_round.setdefault(n, []).append(fmean(values))
            if by_round:
                curves.append(Curve(label, [(n, fmean(values)) for n, values in sorted(by_round.items())]))
        if curves:
            charts.append(line_chart(title, curves, local if share else None, share=share))
    return charts


def _verdict(comparison: Comparison, local: Level) -> str:
    ranked = sorted(
        (group for group in comparison["groups"] if group["accuracy"]["mean"] is not None),
        key=lambda group: -group["accuracy"]["mean"],
    )
    if not ranked:
        return "No accuracy was measured."
    best = ranked[0]
    reaches = "has the highest mean accuracy," if len(ranked) > 1 else "reaches a mean accuracy of"
    text = f"{best['label']} {reaches} {best['accuracy']['mean']:.3f}"
    if best["worst"]["mean"] is not None:
        text += f" ({best['worst']['mean']:.3f} at its worst site)"
    if best["algorithm"] == "local" and len(ranked) > 1:
        text += ": here no federated method does better than each site training alone"
    elif local and best["algorithm"] != "local":
        text += f"; sites that train alone reach {local[1]:.3f}"
    return " ".join([f"{text}.", *advice(comparison)])


def _local_level(comparison: Comparison) -> Level:
    for group in comparison["groups"]:
        accuracy = (
            group["accuracy"] if group["algorithm"] == "local" else (group["to_local"] or {}).get("baseline_accuracy")
        )
        if accuracy and accuracy["mean"] is not None:
            return "local training", accuracy["mean"]
    return None
