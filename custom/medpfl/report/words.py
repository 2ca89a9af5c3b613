"""Numbers and results in words, the same in every kind of report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import fmean
from textwrap import wrap
from typing import Any

from medpfl.core.measure import BETTER, NONE, Measure
from medpfl.core.numbers_in_words import count
from medpfl.report.measures import chief, first, measures_of, with_interval
from medpfl.report.one_class import meaningless, one_class_note
from medpfl.report.reading import Results

_NAMED = 5
"""Sites whose failures are told in lines."""


def algorithm_name(algorithm: str) -> str:
    """The method's name as its paper writes it."""
    if algorithm == "local":
        return "Local training"
    from medpfl.algorithms import algorithms  # imports torch: results that say the title do not need it

    known = algorithms().get(algorithm)
    return known.title if known else algorithm


def method_name(run: Results) -> str:
    """The same for a run's results, which say it."""
    said = run.get("title")
    return said if said and run["algorithm"] != "local" else algorithm_name(run["algorithm"])


def percent(share: float | None) -> str:
    """A share as 25 %; none and all are said of these alone."""
    if share is None:
        return NONE
    told = f"{100 * share:.0f}"
    if share > 0 and told == "0":
        return "< 1 %"
    return "> 99 %" if share < 1 and told == "100" else f"{told} %"


def duration(seconds: float | None) -> str:
    """Seconds as 4.2 s, 3 min 05 s or 2 h 10 min."""
    if seconds is None:
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def went_wrong(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each site with the first of its failures, of five sites at most; nothing without any."""
    first: dict[str, Mapping[str, Any]] = {}
    for failure in failures:
        first.setdefault(failure["site"], failure)
    more = {site: sum(f["site"] == site for f in failures) - 1 for site in first}
    lines = [
        f"{site}, round {f['round']}: {f['reason']}" + (f"; {count(more[site], 'failure')} more" if more[site] else "")
        for site, f in islice(first.items(), _NAMED)
    ]
    others = len(first) - len(lines)
    return [*lines, f"Failures at {count(others, 'site')} more: results.json, failures."] if others else lines


def data_name(data: dict[str, Any]) -> str:
    """The data set's name; a phantom is called one wherever it is named."""
    name = str(data.get("name"))
    return f"{name} (phantom, no patients)" if data.get("phantom") else name


def counted_as(data: dict[str, Any]) -> str:
    """What the numbers of a run's data are of: patients of CT scans, windows of time series, else images."""
    if data.get("preprocessing"):
        return "patients"
    return "windows" if "divide" in (data.get("reading") or {}) else "images"


def folded(name: str, width: int) -> str:
    """A name in lines of at most so many characters, broken after hyphens and at blanks where it can be."""
    return "\n".join(wrap(name, width)) or name


def site_name(results: Results, site: str) -> str:
    """The site, and the centre of the data that it stands for."""
    centre = results["data"]["sites"].get(site, {}).get("centre")
    return f"{site} ({centre})" if centre and centre != site else site


def further(results: Results) -> list[str]:
    """What else a run found, a sentence each: personal heads, the sites' models together, centres held out."""
    lines = [] if meaningless(results) else one_class_note(results)
    if results["data"].get("phantom"):
        lines.append("The images are a phantom's, made by a program: they show that a method runs, not that it helps.")
    if heads := results.get("heads"):
        each = f"{heads['personal'] / heads['layers']:g} of {heads['of'] / heads['layers']:g}"
        lines.append(f"{each} attention heads are personal in each of {heads['layers']} layers (p = {heads['p']:.3f}).")
    if made := [entry["impression"] for entry in results["rounds"] if entry.get("impression")]:
        good = [entry for entry in made if "failed" not in entry]
        moved = (
            f" of {good[0]['images']} images, whose pixels moved by {fmean(e['moved'] for e in good):.4f}"
            if good
            else ""
        )
        failed = f"; {len(made) - len(good)} failed" if len(good) < len(made) else ""
        lines.append(f"{count(len(made), 'federated impression')}{moved} (root mean square, of a range of 2){failed}.")
    if found := results.get("forgetting"):
        begun = first(results)
        others, own = (found["mean"].get(which) for which in ("others", "own"))
        lines.append(
            f"Forgetting: one more round of local training changes {begun.title} on the other sites' data from "
            f"{_change(begun, others)}" + (f", on the site's own from {_change(begun, own)}." if own else ".")
        )
    if new := results.get("new"):
        alone = new["models"] == 1
        average = "1 site's model alone" if alone else f"The average of {new['models']} sites' models"
        measure = chief(measures_of(results))[-1]
        if new["pooled"]:
            lines.append(f"{average} on all sites' test data: {_reached(measure, new['pooled'])}.")
        lines += [
            f"{average} at {centre}, which took no part in training: {_reached(measure, entry)}."
            for centre, entry in new["held_out"].items()
        ]
    return lines


def _reached(measure: Measure, entry: dict[str, Any]) -> str:
    return f"{measure.title} {with_interval(measure, entry)} {measure.unit}".strip()


def _change(measure: Measure, measured: dict[str, Any]) -> str:
    before, after = (measured[when].get(measure.name) for when in ("before", "after"))
    if before is None or after is None:
        return "what could not be measured"
    by = measure.told(measure.gain(after, before))
    sign = "" if measure.better == "higher" else f", {BETTER}"
    return f"{measure.said(before)} to {measure.said(after)} ({by}{sign})"
