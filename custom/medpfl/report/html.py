"""Runs as one self-contained HTML page: no script, no font, nothing that is fetched from elsewhere."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from medpfl.errors import UserError
from medpfl.report.compare import Comparison, compare
from medpfl.report.compare_table import comparison_note, comparison_rows
from medpfl.report.figures import Curve, line_chart, strip_plot
from medpfl.report.html_run import COURSES, partition, run_body
from medpfl.report.html_table import table
from medpfl.report.pairing import grouped
from medpfl.report.results import (
    Results,
    round_series,
    selected,
    write_text,
)
from medpfl.report.style import STYLE
from medpfl.report.words import (
    algorithm_name,
    count,
    data_name,
    score,
)


def write_report(runs: list[Results], path: str | os.PathLike[str]) -> Path:
    """Write one page about a run, or about several: the comparison first, then each of them.

    A run that has not ended is shown as far as it is. Runs that cannot be paired are shown one after the other, and
    the page says why there is no comparison.

    Args:
        runs: results of :func:`medpfl.report.results.load_results`.
        path: the HTML file to write; its folder is made if need be.

    Raises:
        UserError: there are no runs.
    """
    if not runs:
        raise UserError("Nothing to report: give at least one run.")
    if len(runs) == 1:
        title, body = _run_title(runs[0]), _single(runs[0])
    else:
        title, body = _several(runs)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    return write_text(path, page)


def _run_title(run: Results) -> str:
    return f"{algorithm_name(run['algorithm'])} on {data_name(run['data'])}"


def _single(run: Results) -> str:
    return f"<h1>{escape(_run_title(run))}</h1>\n{run_body(run, 2, with_partition=True)}"


def _several(runs: list[Results]) -> tuple[str, str]:
    try:
        comparison = compare(runs)
    except UserError as error:
        title = f"{len(runs)} runs"
        why = f"The runs are shown one by one, without a comparison. {error}"
        top = f'<h1>{title}</h1>\n<p class="problem">{escape(why)}</p>'
        return title, "\n".join(
            [top, *(_folded(run, algorithm_name(run["algorithm"]), with_partition=True) for run in runs)]
        )
    algorithms = len({group["algorithm"] for group in comparison["groups"]})
    title = f"{count(algorithms, 'algorithm')} on {comparison['data']['name']}"
    groups = grouped(runs)
    seeds = comparison["seeds"]
    splits = [
        partition(run, f"Seed {seed}. " if len(seeds) > 1 else "") for seed, run in next(iter(groups.values())).items()
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        _comparison(comparison, groups),
        f'<h2>Who has which images</h2><div class="seeds">{"".join(splits)}</div>',
        "<h2>Each run</h2>",
    ]
    # The splits are the same for all algorithms and stand above once.
    for label, by_seed in groups.items():
        parts += [_folded(run, label, with_partition=False) for run in by_seed.values()]
    return title, "\n".join(parts)


def _folded(run: Results, label: str, with_partition: bool) -> str:
    scores = selected(run)
    accuracy = f", accuracy {score(scores['mean'].get('accuracy'))}" if scores else ", not finished"
    name = f"{label} on {data_name(run['data'])}, seed {run['config'].get('seed')}{accuracy}"
    return f"<details><summary>{escape(name)}</summary>\n{run_body(run, 3, with_partition)}</details>"


def _comparison(comparison: Comparison, runs: dict[str, dict[Any, Results]]) -> str:
    groups = comparison["groups"]
    heads, rows = comparison_rows(comparison)
    parts = [
        f'<p class="lead">{escape(_verdict(comparison))}</p>',
        table(heads, rows, "Algorithms compared"),
        f'<p class="note">{escape(comparison_note(comparison))}</p>',
    ]
    local = _local_level(comparison)
    strips = [(group["label"], {k: v for k, v in group["sites"].items() if v is not None}) for group in groups]
    if any(sites for _, sites in strips):
        parts += [
            "<h2>Every site</h2>",
            strip_plot("test accuracy", strips, local),
            '<p class="note">A dot is a site (its mean over seeds), the stroke the mean over sites'
            + (", the dashed line the mean of local training" if local else "")
            + ".</p>",
        ]
    charts = []
    for title, keys, share in COURSES:
        curves = []
        for label, members in runs.items():
            by_round: dict[int, list[float]] = {}
            for run in members.values():
                for n, values in round_series(run, *keys):
                    by_round.setdefault(n, []).append(fmean(values))
            if by_round:
                curves.append(Curve(label, [(n, fmean(values)) for n, values in sorted(by_round.items())]))
        if curves:
            charts.append(line_chart(title, curves, local if share else None, share=share))
    if charts:
        over = "sites and seeds" if len(comparison["seeds"]) > 1 else "sites"
        dashed = " The dashed line is the test accuracy of local training." if local else ""
        parts += [
            "<h2>Course of training</h2>",
            f'<div class="pair">{"".join(charts)}</div>',
            f'<p class="note">Means over {over}.{dashed}</p>',
        ]
    return "\n".join(parts)


def _verdict(comparison: Comparison) -> str:
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
    local = _local_level(comparison)
    if best["algorithm"] == "local" and len(ranked) > 1:
        text += ": here no federated method does better than each site training alone"
    elif local and best["algorithm"] != "local":
        text += f"; sites that train alone reach {local[1]:.3f}"
    return f"{text}."


def _local_level(comparison: Comparison) -> tuple[str, float] | None:
    for group in comparison["groups"]:
        accuracy = (
            group["accuracy"] if group["algorithm"] == "local" else (group["to_local"] or {}).get("baseline_accuracy")
        )
        if accuracy and accuracy["mean"] is not None:
            return "local training", accuracy["mean"]
    return None
