"""Algorithms side by side: the same splits and seeds, differences paired site by site."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.gain import OF_CLASSES
from medpfl.core.measure import Measure
from medpfl.report.every_pair import Scores, every_pair, mean_ranks
from medpfl.report.gains import Over, gains, over_seeds
from medpfl.report.judged import ends_unequally, judged
from medpfl.report.measures import all_measures, as_earlier
from medpfl.report.one_class import one_class
from medpfl.report.pairing import check_pairs, check_tasks, grouped, name_of, settings_of, shown
from medpfl.report.reading import (
    Results,
    among,
    local_reference,
    mean_or_none,
    selected,
    site_scores,
    worst_site,
)
from medpfl.report.trained_alone import REFERENCE, other_settings, to_best_alone, to_own_rival, trained_alone
from medpfl.report.unequal import code_of, code_of_others
from medpfl.report.unfinished import Unfinished
from medpfl.report.words import data_name, went_wrong

Comparison = dict[str, Any]
Groups = dict[str, dict[Any, Results]]
"""By label, the runs by seed."""

_NUMBER = re.compile(r"(?<![\w.])(?<!\w-)\d[\d.,]*")
"""In a note; not in the name of a site."""


def compare(runs: list[Results], unfinished: Sequence[Unfinished] = (), measures: Sequence[Measure] = ()) -> Comparison:
    """Group finished runs by algorithm over seeds and pair them, seed by seed and site by site.

    Standard deviations (``sd``) are over seeds, with n - 1 in the denominator, and None for a single seed. The
    difference to local training is taken to a run of ``local`` among the runs, else to each run's own rival; above
    0 is better, whichever way the measure is.

    Args:
        runs: finished ones.
        unfinished: what was to be compared too and ended early.
        measures: in the order of the report, where it is of more than these runs; by default :func:`leading`.

    Returns:
        ``{"schema", "measures", "data", "seeds", "groups": [...], "pairs": [...], "unfinished", "lacking",
        "one_class"}``; groups in the order in which their algorithm was first given. Where some sites did not answer
        some runs' test, ``lacking`` has them by label, and all figures are over the others.

    Raises:
        UserError: a run has not ended, a run is there twice, two runs are of different tasks, or cannot be paired
            because their data, partition, sites, seeds or splits differ; the message names the first difference.
    """
    if not runs:
        raise UserError("Nothing to compare: give at least one run.")
    for run in runs:
        if selected(run) is None:
            raise UserError(f"{name_of(run)} has not ended; only finished runs can be compared.")
    check_tasks(runs)
    groups = grouped(runs)
    check_pairs(groups)
    groups, lacking = _over_the_same_sites(groups)
    first, measures = runs[0], measures or leading(runs)
    scores = {label: {seed: selected(run) for seed, run in by_seed.items()} for label, by_seed in groups.items()}
    trained = list(trained_alone(groups))
    ranks = mean_ranks(scores, measures[0])
    found = [_summarise(label, groups, scores, measures) for label in groups]
    for group, by_seed in zip(found, groups.values(), strict=True):
        group |= {
            "to_best_alone": to_best_alone(group, by_seed, trained, measures[0]),
            "rank": ranks[group["label"]],
        }
    classes = one_class(next(iter(groups.values()))) if measures[0].name in OF_CLASSES else None
    for group in found:
        told = None if classes and classes["meaningless"] else judged(group, found)
        group |= {"judged": told, "ends_unequally": ends_unequally(group, found)}
    return {
        "schema": 2,
        "measures": [m.described() for m in measures],
        "data": {
            "name": data_name(first["data"]),
            "partition": first["data"].get("partition"),
            "models": list(dict.fromkeys(run["config"].get("model") for run in runs)),
            "sites": _sites(first),
        },
        "seeds": list(next(iter(groups.values()))),
        "code": code_of(runs),
        "code_of_others": code_of_others(runs),
        "lacking": lacking,
        "one_class": classes,
        "groups": found,
        "pairs": every_pair(scores, measures[0]),
        "unfinished": list(unfinished),
    }


def leading(runs: Sequence[Results]) -> tuple[Measure, ...]:
    """The measures, in front the one that one run's report must begin with: where its classes are uneven, all do."""
    return all_measures(next((run for run in runs if (run.get("selection") or {}).get("lead")), runs[0]))


def _over_the_same_sites(groups: Groups) -> tuple[Groups, dict[str, list[str]]]:
    """Runs with the sites alone that all of their seed have a test of; and by label which sites are lacking."""
    kept: Groups = {label: {} for label in groups}
    lacking: dict[str, dict[str, list[Any]]] = {}
    seeds = list(next(iter(groups.values())))
    for seed in seeds:
        tested = {label: selected(by_seed[seed])["sites"] for label, by_seed in groups.items()}
        every = dict.fromkeys(site for sites in tested.values() for site in sites)
        shared = [site for site in every if all(site in sites for sites in tested.values())]
        for label, sites in tested.items():
            kept[label][seed] = among(groups[label][seed], shared)
            for site in (site for site in every if site not in sites):
                lacking.setdefault(label, {}).setdefault(site, []).append(seed)
    return kept, {
        label: [site + f" in seed {shown(of)}" * (len(of) < len(seeds)) for site, of in sites.items()]
        for label, sites in lacking.items()
    }


def _summarise(label: str, groups: Groups, every: Scores, measures: Sequence[Measure]) -> dict[str, Any]:
    by_seed, scores = groups[label], every[label]
    runs = list(by_seed.values())
    algorithm = runs[0]["algorithm"]
    begun = measures[0]

    local_label = baseline("local", by_seed, groups)
    local = every.get(local_label)
    if local is None:
        references = {seed: local_reference(run) for seed, run in by_seed.items()}
        if all(references.values()):
            local_label = REFERENCE
            local = references
    fedavg_label = baseline("fedavg", by_seed, groups)

    worst = [worst_site(entry, begun) for entry in scores.values()]
    per_site = {
        site: mean_or_none(site_scores(entry, begun.name).get(site) for entry in scores.values())
        for site in _sites(runs[0])
    }
    over = {m.name: over_seeds(entry["mean"].get(m.name) for entry in scores.values()) for m in measures}
    new = {m.name: over_seeds(_new(run, m.name) for run in runs) for m in measures}
    held_out = {m.name: over_seeds(_held_out(run, m.name) for run in runs) for m in measures}
    return {
        "label": label,
        "algorithm": algorithm,
        "rounds": runs[0]["config"].get("rounds"),
        "local_epochs": runs[0]["config"].get("local_epochs"),
        "further": runs[0].get("further", ""),
        "each_round": runs[0].get("each_round", ""),
        "trained_otherwise": other_settings(runs[0], next(iter(groups.get(local_label, {}).values()), None)),
        "measures": over,
        **(_earlier(over, new, held_out) if _with_earlier_names(measures) else {}),
        "worst": over_seeds(found[1] if found else None for found in worst),
        "new": new,
        "held_out": held_out,
        "forgetting": over_seeds(_forgetting(run, begun) for run in runs),
        "to_local": None if algorithm == "local" or local is None else _paired(scores, local, local_label, measures),
        "to_own_rival": to_own_rival(by_seed, begun),
        "to_fedavg": None
        if algorithm == "fedavg" or fedavg_label is None
        else _paired(scores, every[fedavg_label], fedavg_label, measures),
        "selected_round": over_seeds(map(_selected_round, runs)),
        "seconds": over_seeds((run.get("seconds") or {}).get("total") for run in runs),
        "sent_bytes_per_site_round": over_seeds(_per_site_round(run, "sent_bytes") for run in runs),
        "received_bytes_per_site_round": over_seeds(_per_site_round(run, "received_bytes") for run in runs),
        "sites": per_site,
        "by_seed": {str(seed): entry["mean"].get(begun.name) for seed, entry in scores.items()},
        "notes": _notes(by_seed),
    }


def _sites(run: Results) -> list[str]:
    """Names; where only the sites know their data, of those that have a test."""
    return list(run["data"]["sites"] or run["final"]["selected"]["sites"])


def _notes(by_seed: dict[Any, Results]) -> list[dict[str, Any]]:
    """The runs' notes, once each, with the seed where not all have it; of those with other numbers the first seed's."""
    notes = {seed: (*(run.get("notes") or ()), *went_wrong(run.get("failures") or ())) for seed, run in by_seed.items()}
    first: dict[str, Any] = {}
    found = []
    for seed, texts in notes.items():
        for text in dict.fromkeys(texts):
            if first.setdefault(_blank(text), seed) == seed:
                everywhere = all(text in other for other in notes.values())
                alike = [s for s, other in notes.items() if s != seed and _blank(text) in map(_blank, other)]
                found.append({"seed": None if everywhere else seed, "alike": [] if everywhere else alike, "text": text})
    return found


def _blank(text: str) -> str:
    return _NUMBER.sub("0", text)


def _with_earlier_names(measures: Sequence[Measure]) -> bool:
    return as_earlier([m for m in measures if not m.further])


def _selected_round(run: Results) -> float | None:
    """The round, or the mean of the sites' own."""
    own = run.get("selected_rounds")
    return fmean(own.values()) if own else run.get("selected_round")


def _earlier(over: dict[str, Over], new: dict[str, Over], held_out: dict[str, Over]) -> dict[str, Over]:
    """Of classification, the same under the names of the first version, for whoever reads its files."""
    return {
        **{name: over[name] for name in ("accuracy", "balanced_accuracy", "auroc")},
        "new_auroc": new["auroc"],
        "new_accuracy": new["accuracy"],
        "held_out_auroc": held_out["auroc"],
    }


def baseline(algorithm: str, by_seed: dict[Any, Results], groups: dict[Any, dict[Any, Results]]) -> Any:
    """The label of that algorithm and model; of several (say, with 20 and 80 rounds) the one set most like this.

    None where there is none.
    """
    own = settings_of(next(iter(by_seed.values())))

    def unlike(candidate: tuple[Any, dict[Any, Results]]) -> int:
        options = settings_of(next(iter(candidate[1].values())))
        return sum(own.get(key) != options.get(key) for key in own.keys() | options.keys())

    candidates = [
        (label, runs)
        for label, runs in groups.items()
        if (run := next(iter(runs.values())))["algorithm"] == algorithm and settings_of(run)["model"] == own["model"]
    ]
    return min(candidates, key=unlike)[0] if candidates else None


def alone(paired: dict[str, Any] | None, measure: str) -> Over | None:
    """What the baseline itself reaches."""
    return paired and paired["measures"][measure]["baseline"]


def _paired(
    scores: dict[Any, Any], baseline: dict[Any, Any], label: str, measures: Sequence[Measure]
) -> dict[str, Any]:
    """What is gained over a baseline: of the first measure, and under ``measures`` of each."""
    found = {}
    for measure in measures:
        of_baseline = over_seeds(baseline[seed]["mean"].get(measure.name) for seed in scores)
        found[measure.name] = {"baseline": of_baseline, **gains(scores, baseline, measure)}
    begun = found[measures[0].name]
    earlier = {"baseline_accuracy": found["accuracy"]["baseline"]} if _with_earlier_names(measures) else {}
    return {**begun, "baseline": label, **earlier, "measures": found}


def _new(run: Results, measure: str) -> float | None:
    return ((run.get("new") or {}).get("pooled") or {}).get(measure)


def _forgetting(run: Results, measure: Measure) -> float | None:
    """What is gained by one more local training on the other sites' data, mean over sites."""
    if not (others := (run.get("forgetting") or {}).get("mean", {}).get("others")):
        return None
    before, after = (others[when].get(measure.name) for when in ("before", "after"))
    return None if before is None or after is None else measure.gain(after, before)


def _held_out(run: Results, measure: str) -> float | None:
    return mean_or_none(centre.get(measure) for centre in (run.get("new") or {}).get("held_out", {}).values())


def _per_site_round(run: Results, key: str) -> float | None:
    return mean_or_none(site.get(key) for entry in run["rounds"] for site in entry["sites"].values())
