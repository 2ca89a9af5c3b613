"""Reading results.json and the few questions every report asks of it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.measure import Measure

SCHEMAS = (1, 2, 3)

Results = dict[str, Any]


def load_results(path: str | os.PathLike[str], *, finished: bool = True) -> Results:
    """Read and check the results of one run.

    Args:
        path: a run's folder, or the results.json in it.
        finished: refuse a run that has not ended. With False, ``final`` may be None.

    Raises:
        UserError: the file is missing, is not JSON, has another schema or lacks a part, or the run has not ended.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "results.json"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        for kind, runs in (("comparison", "*/seed-*"), ("sweep", "*/*/seed-*")):
            if (file.parent / f"{kind}.json").is_file():
                raise UserError(
                    f"{file.parent} is a {kind}'s folder and no run's: its page is {file.parent / 'report.html'}; give "
                    f"its runs, {file.parent}/{runs}, for another"
                ) from None
        raise UserError(
            f"{file}: no such file. Give the folder that a run wrote (its --out) or the results.json in it."
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: not a text file; expected the results.json of a run.") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}).") from None
    try:
        # NaN is not JSON, yet Python writes it; a measure that could not be computed is null to us.
        results = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}). The file is damaged.") from None
    _check(results, file, finished)
    return results


def _check(results: Any, file: Path, finished: bool) -> None:
    if not isinstance(results, dict) or "schema" not in results:
        raise UserError(f"{file}: not the results of a run (it has no 'schema'); expected a file that medpfl wrote.")
    if results["schema"] not in SCHEMAS:
        raise UserError(
            f"{file}: has schema {results['schema']!r}, this version of medpfl reads schemas "
            f"{', '.join(map(str, SCHEMAS[:-1]))} and {SCHEMAS[-1]}. "
            "Use the version that wrote it."
        )
    for dotted, kind in (
        ("algorithm", str),
        ("config", dict),
        ("data", dict),
        ("data.sites", dict),
        ("rounds", list),
    ):
        value: Any = results
        for key in dotted.split("."):
            value = value.get(key)
        if not isinstance(value, kind):
            raise UserError(f"{file}: '{dotted}' is missing or is not a {kind.__name__}; the file is damaged.")
    _check_measures(results.get("measures"), file)
    if not all(isinstance(entry, dict) and {"round", "sites"} <= entry.keys() for entry in results["rounds"]):
        raise UserError(f"{file}: an entry of 'rounds' lacks 'round' or 'sites'; the file is damaged.")
    final = results.get("final")
    if final is None:
        if finished:
            done, planned = len(results["rounds"]), results["config"].get("rounds", "?")
            raise UserError(
                f"{file}: the run has not ended ({done} of {planned} rounds). "
                "Wait for it, or continue it with --resume."
            )
        return
    reference = results.get("reference")
    for name, part in (("final", final), ("reference.final", reference.get("final") if reference else None)):
        if part is None:
            continue
        for which in ("selected", "last"):
            scores = part.get(which) if isinstance(part, dict) else None
            if not isinstance(scores, dict) or not all(
                isinstance(scores.get(key), dict) for key in ("sites", "mean", "worst", "std")
            ):
                raise UserError(
                    f"{file}: '{name}.{which}' lacks sites, mean, worst or std; "
                    "the file is damaged or of another version."
                )


def _check_measures(said: Any, file: Path) -> None:
    if said is None:  # of an earlier schema
        return
    if not isinstance(said, list) or not said:
        raise UserError(f"{file}: 'measures' is no list of measures; the file is damaged.")
    for measure in said:
        if (
            not isinstance(measure, dict)
            or not all(isinstance(measure.get(key), str) for key in ("name", "title"))
            or measure.get("better", "higher") not in ("higher", "lower")
        ):
            raise UserError(
                f"{file}: an entry of 'measures' lacks 'name' or 'title', or its 'better' is neither higher nor lower; "
                "the file is damaged."
            )


def is_local(results: Results) -> bool:
    """Whether this run is local training itself, so that a difference to local training says nothing."""
    return results["algorithm"] == "local"


def selected(results: Results) -> dict[str, Any] | None:
    """Test measures at the round that validation data chose; None before the end of the run."""
    return (results.get("final") or {}).get("selected")


def among(run: Results, sites: Collection[str]) -> Results:
    """A finished run of which some sites are looked at: their test measures, rivals and verdicts."""
    if {*sites} >= selected(run)["sites"].keys():
        return run
    reduced = {**run, "final": {**run["final"], "selected": _among(selected(run), sites)}}
    if reference := local_reference(run):
        reduced["reference"] = {"final": {**run["reference"]["final"], "selected": _among(reference, sites)}}
    if said := run.get("verdict"):
        reduced["verdict"] = {**said, "sites": {site: of for site, of in said["sites"].items() if site in sites}}
    return reduced


def _among(part: dict[str, Any], sites: Collection[str]) -> dict[str, Any]:
    of_some = {**part, "sites": {site: of for site, of in part["sites"].items() if site in sites}}
    return of_some | {"mean": {name: mean_or_none(site_scores(of_some, name).values()) for name in part["mean"]}}


def local_reference(results: Results) -> dict[str, Any] | None:
    """Test measures of local training on the same split and seed, if the run has them."""
    return ((results.get("reference") or {}).get("final") or {}).get("selected")


def site_scores(scores: dict[str, Any] | None, measure: str) -> dict[str, float]:
    """Site name to value, for the sites where the measure could be computed."""
    sites = scores["sites"] if scores else {}
    return {name: entry[measure] for name, entry in sites.items() if entry.get(measure) is not None}


def differences(scores: dict[str, Any] | None, baseline: dict[str, Any] | None, measure: Measure) -> dict[str, float]:
    """Site name to what is gained over the baseline, for the sites that have both; above 0 is better."""
    base = site_scores(baseline, measure.name)
    scored = site_scores(scores, measure.name)
    return {name: measure.gain(value, base[name]) for name, value in scored.items() if name in base}


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None if there are none."""
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def worst_site(scores: dict[str, Any], measure: Measure) -> tuple[str, float] | None:
    """The site where the measure is worst, and its value there."""
    values = site_scores(scores, measure.name)
    if not values:
        return None
    name = min(values, key=lambda site: measure.gain(values[site], 0))
    return name, values[name]


def class_names(results: Results) -> list[str]:
    """The classes that occur at any site, numbers in numerical order."""
    names = {name for site in results["data"]["sites"].values() for name in site.get("classes") or {}}
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


def class_titles(results: Results) -> dict[str, str]:
    """The same, those that are counted by number with the names that the data give them."""
    keys, names = class_names(results), list(map(str, results["data"].get("classes") or ()))
    by_number = not {*keys} <= {*names} and all(key.isdecimal() and int(key) < len(names) for key in keys)
    return {key: names[int(key)] if by_number else key for key in keys}


def round_series(results: Results, *keys: str) -> list[tuple[int, list[float]]]:
    """(round, the sites' values) for every round in which any site has the value at that path of keys."""
    series = []
    for entry in results["rounds"]:
        values = []
        for site in entry["sites"].values():
            value: Any = site
            for key in keys:
                value = value.get(key) if value else None
            if value is not None:
                values.append(float(value))
        if values:
            series.append((int(entry["round"]), values))
    return series
