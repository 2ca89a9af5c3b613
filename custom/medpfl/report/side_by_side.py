"""Algorithms side by side: the same splits and seeds, differences paired site by site."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, stdev
from typing import Any

from medpfl.core.errors import UserError
from medpfl.report.pairing import check_pairs, grouped, name_of, settings_of
from medpfl.report.reading import (
    MEASURES,
    Results,
    differences,
    local_reference,
    mean_or_none,
    selected,
    site_scores,
    worst_site,
)
from medpfl.report.words import data_name

Comparison = dict[str, Any]

REFERENCE = "the reference in each run"
_POINT = 0.01 + 1e-9
"""A percentage point, and what subtraction makes of it."""


def compare(runs: list[Results]) -> Comparison:
    """Group finished runs by algorithm over seeds and pair them, seed by seed and site by site.

    Standard deviations (``sd``) are over seeds, with n - 1 in the denominator, and None for a single seed. The
    difference to local training is taken to a run of ``local`` among the runs, else to the reference in each run.

    Returns:
        ``{"schema", "data", "seeds", "groups": [...]}``; groups in the order in which their algorithm was first given.

    Raises:
        UserError: a run has not ended, a run is there twice, or two runs cannot be paired because their data,
            partition, sites, seeds or splits differ; the message names the first difference.
    """
    if not runs:
        raise UserError("Nothing to compare: give at least one run.")
    for run in runs:
        if selected(run) is None:
            raise UserError(f"{name_of(run)} has not ended; only finished runs can be compared.")
    groups = grouped(runs)
    check_pairs(groups)
    first = runs[0]
    return {
        "schema": 1,
        "data": {
            "name": data_name(first["data"]),
            "partition": first["data"].get("partition"),
            "models": list(dict.fromkeys(run["config"].get("model") for run in runs)),
            "sites": list(first["data"]["sites"]),
        },
        "seeds": list(next(iter(groups.values()))),
        "groups": [_summarise(label, by_seed, groups) for label, by_seed in groups.items()],
    }


def _summarise(label: str, by_seed: dict[Any, Results], groups: dict[str, dict[Any, Results]]) -> dict[str, Any]:
    runs = list(by_seed.values())
    algorithm = runs[0]["algorithm"]
    scores = {seed: run["final"]["selected"] for seed, run in by_seed.items()}

    local_label, local = _baseline("local", by_seed, groups)
    if local is None:
        references = {seed: local_reference(run) for seed, run in by_seed.items()}
        if all(references.values()):
            local_label, local = REFERENCE, references
    fedavg_label, fedavg = _baseline("fedavg", by_seed, groups)

    worst = [worst_site(entry, "accuracy") for entry in scores.values()]
    per_site = {
        site: mean_or_none(site_scores(entry, "accuracy").get(site) for entry in scores.values())
        for site in runs[0]["data"]["sites"]
    }
    return {
        "label": label,
        "algorithm": algorithm,
        "rounds": runs[0]["config"].get("rounds"),
        "local_epochs": runs[0]["config"].get("local_epochs"),
        **{measure: _over_seeds(entry["mean"].get(measure) for entry in scores.values()) for measure in MEASURES},
        "worst": _over_seeds(found[1] if found else None for found in worst),
        "new_auroc": _over_seeds(_new(run, "auroc") for run in runs),
        "new_accuracy": _over_seeds(_new(run, "accuracy") for run in runs),
        "held_out_auroc": _over_seeds(_held_out_auroc(run) for run in runs),
        "forgetting": _over_seeds(_forgetting(run) for run in runs),
        "to_local": None if algorithm == "local" or local is None else _paired(scores, local, local_label),
        "to_fedavg": None if algorithm == "fedavg" or fedavg is None else _paired(scores, fedavg, fedavg_label),
        "selected_round": _over_seeds(run.get("selected_round") for run in runs),
        "seconds": _over_seeds((run.get("seconds") or {}).get("total") for run in runs),
        "sent_bytes_per_site_round": _over_seeds(_per_site_round(run, "sent_bytes") for run in runs),
        "received_bytes_per_site_round": _over_seeds(_per_site_round(run, "received_bytes") for run in runs),
        "sites": per_site,
        "by_seed": {str(seed): entry["mean"].get("accuracy") for seed, entry in scores.items()},
    }


def _baseline(
    algorithm: str, by_seed: dict[Any, Results], groups: dict[str, dict[Any, Results]]
) -> tuple[str, dict[Any, Any] | None]:
    """The group of that algorithm and model; of several (say, with 20 and 80 rounds) the one set most like this."""
    own = settings_of(next(iter(by_seed.values())))

    def unlike(candidate: tuple[str, dict[Any, Results]]) -> int:
        options = settings_of(next(iter(candidate[1].values())))
        return sum(own[key] != options[key] for key in own.keys() & options.keys())

    candidates = [
        (label, runs)
        for label, runs in groups.items()
        if (run := next(iter(runs.values())))["algorithm"] == algorithm and settings_of(run)["model"] == own["model"]
    ]
    if not candidates:
        return "", None
    label, runs = min(candidates, key=unlike)
    return label, {seed: selected(run) for seed, run in runs.items()}


def _paired(scores: dict[Any, Any], baseline: dict[Any, Any], label: str) -> dict[str, Any]:
    """Accuracy differences: mean and worst of a seed's sites, over seeds; in how many pairs it is better, and below."""
    by_seed = [list(differences(entry, baseline[seed], "accuracy").values()) for seed, entry in scores.items()]
    pairs = [value for values in by_seed for value in values]
    return {
        "baseline": label,
        "baseline_accuracy": _over_seeds(baseline[seed]["mean"].get("accuracy") for seed in scores),
        **_over_seeds(fmean(values) if values else None for values in by_seed),
        "worst": _over_seeds(min(values, default=None) for values in by_seed),
        "below": sum(value < -_POINT for value in pairs) / len(pairs) if pairs else None,
        "better": sum(value > 0 for value in pairs),
        "worse": sum(value < 0 for value in pairs),
        "pairs": len(pairs),
    }


def _over_seeds(values: Iterable[float | None]) -> dict[str, float | None]:
    present = [float(value) for value in values if value is not None]
    return {
        "mean": fmean(present) if present else None,
        "sd": stdev(present) if len(present) > 1 else None,
    }


def _new(run: Results, measure: str) -> float | None:
    return ((run.get("new") or {}).get("pooled") or {}).get(measure)


def _forgetting(run: Results) -> float | None:
    """What one more local training adds to the accuracy on the other sites' data, mean over sites."""
    if not (others := (run.get("forgetting") or {}).get("mean", {}).get("others")):
        return None
    return others["after"]["accuracy"] - others["before"]["accuracy"]


def _held_out_auroc(run: Results) -> float | None:
    return mean_or_none(centre["auroc"] for centre in (run.get("new") or {}).get("held_out", {}).values())


def _per_site_round(run: Results, key: str) -> float | None:
    return mean_or_none(site.get(key) for entry in run["rounds"] for site in entry["sites"].values())
