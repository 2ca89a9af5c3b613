"""Algorithms side by side: the same splits and seeds, differences paired site by site."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from medpfl.algorithms import ALGORITHMS
from medpfl.errors import UserError
from medpfl.report.results import (
    MEASURES,
    Results,
    differences,
    local_reference,
    mean_or_none,
    selected,
    site_scores,
    worst_site,
    write_text,
)
from medpfl.report.words import NONE, algorithm_name, data_name, points, score, size, spread

Comparison = dict[str, Any]

# They say where and when a run was made, not what it computes.
_CIRCUMSTANCES = frozenset(
    ("algorithm", "seed", "out", "experiment", "resume", "device", "threads", "intra_op_threads", "timeout", "kit")
)
_REFERENCE = "the reference in each run"
# The objective and the server's steps follow from settings; a label begins with the model where there are several.
_NAMED_OTHERWISE = frozenset({"objective", "server", "model"})


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
            raise UserError(f"{_name(run)} has not ended; only finished runs can be compared.")
    groups = grouped(runs)
    _check_pairs(groups)
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


def _name(run: Results) -> str:
    return f"{run['algorithm']} (seed {run['config'].get('seed')})"


def grouped(runs: list[Results]) -> dict[str, dict[Any, Results]]:
    """Label to the group's runs by seed. Runs that differ in any setting but the seed are different groups."""
    settings: dict[str, dict[str, str]] = {}
    members: dict[str, dict[Any, Results]] = defaultdict(dict)
    for run in runs:
        options = _settings(run)
        key = json.dumps([run["algorithm"], options], sort_keys=True)
        settings[key] = options
        seed = run["config"].get("seed")
        if seed in members[key]:
            raise UserError(f"{_name(run)} is there twice with the same settings; give each run once.")
        members[key][seed] = run

    namesakes: dict[str, list[str]] = defaultdict(list)
    for key, by_seed in members.items():
        namesakes[next(iter(by_seed.values()))["algorithm"]].append(key)
    labels = {}
    several_models = len({options["model"] for options in settings.values()}) > 1
    for key, by_seed in members.items():
        algorithm, own = next(iter(by_seed.values()))["algorithm"], settings[key]
        apart = [own["model"]] if several_models else []
        apart += _told_apart_by(algorithm, own, [settings[other] for other in namesakes[algorithm]])
        labels[key] = f"{algorithm_name(algorithm)} ({', '.join(apart)})" if apart else algorithm_name(algorithm)
    return {labels[key]: by_seed for key, by_seed in members.items()}


def _told_apart_by(algorithm: str, own: dict[str, str], alike: list[dict[str, str]]) -> list[str]:
    """The options by which a group differs from the published method or, where a method says nothing, from others."""
    published: dict[str, str] = {}
    if known := ALGORITHMS.get(algorithm):
        personal = known.personal.format(**{k: own.get(k, v) for k, v in known.settings.items()})
        published = dict(_flat({"mu": 0.0, "personal": personal, "mixing": known.mixing, **known.settings}))
    options = []
    for option, value in sorted(own.items()):
        # An option that only some have follows from another one, which is named.
        values = {other[option] for other in alike if option in other}
        differs = option in published or len(values) > 1
        if option not in _NAMED_OTHERWISE and differs and published.get(option) != value:
            options.append(f"{option}={value}")
    return options


def _settings(run: Results) -> dict[str, str]:
    """Everything that decides what the run computes, but the seed, as flat text."""
    config = {key: value for key, value in run["config"].items() if key not in _CIRCUMSTANCES}
    # What identifies the data is compared on its own, with a message that names it.
    for key in ("data", "partition", "sites"):
        config.pop(key, None)
    return dict(_flat(config)) | dict(_flat(run.get("choices") or {}))


def _flat(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value)
        elif isinstance(value, str):
            yield key, value
        else:
            yield key, json.dumps(value)


def _check_pairs(groups: dict[str, dict[Any, Results]]) -> None:
    first_label, first_group = next(iter(groups.items()))
    first = next(iter(first_group.values()))
    for by_seed in groups.values():
        for run in by_seed.values():
            for what, mine, theirs in (
                ("data", first["data"].get("name"), run["data"].get("name")),
                ("checksum of the data", first["data"].get("md5"), run["data"].get("md5")),
                ("partition", first["data"].get("partition"), run["data"].get("partition")),
                ("number of sites", len(first["data"]["sites"]), len(run["data"]["sites"])),
                ("sites", sorted(first["data"]["sites"]), sorted(run["data"]["sites"])),
            ):
                if mine != theirs:
                    raise _cannot_pair(_name(first), _name(run), f"{what} {_shown(mine)} and {_shown(theirs)}")
    for label, by_seed in groups.items():
        if set(by_seed) != set(first_group):
            raise _cannot_pair(first_label, label, f"seeds {_shown(list(first_group))} and {_shown(list(by_seed))}")
        for seed, run in by_seed.items():
            _check_split(first_group[seed], run)


def _check_split(one: Results, other: Results) -> None:
    for site, counts in one["data"]["sites"].items():
        for part in ("train", "validation", "test", "classes"):
            mine, theirs = counts.get(part), other["data"]["sites"][site].get(part)
            if mine != theirs:
                what = f"{part} at {site}:"
                raise _cannot_pair(_name(one), _name(other), f"split ({what} {_shown(mine)} and {_shown(theirs)})")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _cannot_pair(one: str, other: str, difference: str) -> UserError:
    return UserError(
        f"{one} and {other} cannot be paired: they differ in {difference}. "
        "Compare runs on the same data, partition, sites and seeds."
    )


def _summarise(label: str, by_seed: dict[Any, Results], groups: dict[str, dict[Any, Results]]) -> dict[str, Any]:
    runs = list(by_seed.values())
    algorithm = runs[0]["algorithm"]
    scores = {seed: run["final"]["selected"] for seed, run in by_seed.items()}

    local_label, local = _baseline("local", by_seed, groups)
    if local is None:
        references = {seed: local_reference(run) for seed, run in by_seed.items()}
        if all(references.values()):
            local_label, local = _REFERENCE, references
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
    own = _settings(next(iter(by_seed.values())))

    def unlike(candidate: tuple[str, dict[Any, Results]]) -> int:
        options = _settings(next(iter(candidate[1].values())))
        return sum(own[key] != options[key] for key in own.keys() & options.keys())

    candidates = [
        (label, runs)
        for label, runs in groups.items()
        if (run := next(iter(runs.values())))["algorithm"] == algorithm and _settings(run)["model"] == own["model"]
    ]
    if not candidates:
        return "", None
    label, runs = min(candidates, key=unlike)
    return label, {seed: selected(run) for seed, run in runs.items()}


def _paired(scores: dict[Any, Any], baseline: dict[Any, Any], label: str) -> dict[str, Any]:
    """Accuracy differences: averaged over the sites of a seed, then over seeds; and in how many pairs it is better."""
    by_seed = [list(differences(entry, baseline[seed], "accuracy").values()) for seed, entry in scores.items()]
    pairs = [value for values in by_seed for value in values]
    return {
        "baseline": label,
        "baseline_accuracy": _over_seeds(baseline[seed]["mean"].get("accuracy") for seed in scores),
        **_over_seeds(fmean(values) if values else None for values in by_seed),
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


def comparison_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The comparison as text: column heads, and a row of cells for each group."""
    heads = ["Algorithm", "Accuracy", "Worst site", "To local (points)", "Better than local"]
    with_fedavg = any(group["to_fedavg"] for group in comparison["groups"])
    if with_fedavg:
        heads += ["To FedAvg (points)", "Better than FedAvg"]
    # The sites' models together, where that was tested: on all test data, and at centres that did not train.
    together = [
        (key, head)
        for key, head in (
            ("new_accuracy", "New accuracy"),
            ("new_auroc", "New AUC"),
            ("held_out_auroc", "Held-out AUC"),
        )
        if any(group[key]["mean"] is not None for group in comparison["groups"])
    ]
    heads += ["Balanced acc.", "AUC", *(head for _, head in together)]
    with_forgetting = any(group["forgetting"]["mean"] is not None for group in comparison["groups"])
    heads += ["Forgetting (points)"] if with_forgetting else []
    heads += ["Round", "Seconds", "Sent / received per site and round"]
    rows = []
    for group in comparison["groups"]:
        row = [group["label"], spread(**group["accuracy"]), score(group["worst"]["mean"])]
        for paired in (group["to_local"], group["to_fedavg"])[: 1 + with_fedavg]:
            row += (
                [points(paired["mean"], paired["sd"]), f"{paired['better']} of {paired['pairs']}"]
                if paired
                else [NONE, NONE]
            )
        chosen, seconds = group["selected_round"]["mean"], group["seconds"]["mean"]
        sent, received = (group[f"{way}_bytes_per_site_round"]["mean"] for way in ("sent", "received"))
        row += [
            spread(**group["balanced_accuracy"]),
            spread(**group["auroc"]),
            *(spread(**group[key]) for key, _ in together),
            *([points(*group["forgetting"].values())] if with_forgetting else []),
            NONE if chosen is None else f"{chosen:g}" if chosen == int(chosen) else f"{chosen:.1f}",
            NONE if seconds is None else f"{seconds:.1f}",
            NONE if sent is None and received is None else f"{size(sent)} / {size(received)}",
        ]
        rows.append(row)
    return heads, rows


def comparison_note(comparison: Comparison) -> str:
    """What the columns mean, in plain sentences, to stand under the table."""
    data, seeds = comparison["data"], comparison["seeds"]
    # A reference that differs from run to run of a seed would be a defect; the first group's stands for all.
    baselines = {
        group["to_local"]["baseline"]: group["to_local"]["baseline_accuracy"]
        for group in comparison["groups"]
        if group["to_local"]
    }
    sentences = [
        f"{data['name']}, partition {data['partition']}, model {' and '.join(map(str, data['models']))}, "
        f"{len(data['sites'])} sites, "
        + (f"seeds {_shown(seeds)}." if len(seeds) > 1 else f"one seed ({_shown(seeds)})."),
        "Test data, at the round chosen on validation data (the last where there are none); "
        "accuracy, balanced accuracy and AUC are means over sites"
        + (", ± standard deviation over seeds." if len(seeds) > 1 else "."),
        "Differences are paired by site and seed; 'better' counts those pairs.",
    ]
    if any(group["new_auroc"]["mean"] is not None for group in comparison["groups"]):
        sentences.append(
            "New accuracy and AUC: the average prediction of all sites' models on all sites' test data; held-out AUC: "
            "the same at centres that took no part in training."
        )
    if any(group["forgetting"]["mean"] is not None for group in comparison["groups"]):
        sentences.append(
            "Forgetting: how one more local training changes a site's accuracy on the other sites' test data."
        )
    # Unequal effort is allowed, but never silent.
    for key, what in (("rounds", "Rounds"), ("local_epochs", "Local epochs")):
        if len({group[key] for group in comparison["groups"]}) > 1:
            each = ", ".join(f"{group['label']} {group[key]}" for group in comparison["groups"])
            sentences.append(f"{what} differ: {each}.")
    sentences += [
        f"Local training ({label}): {spread(**accuracy)}."
        for label, accuracy in baselines.items()
        if label == _REFERENCE
    ]
    if len(seeds) == 1:
        sentences.append("One seed shows no spread: small differences may be chance.")
    return " ".join(sentences)


def comparison_markdown(comparison: Comparison) -> str:
    """A GitHub table, groups in the comparison's order, with a note on what the columns mean."""
    heads, rows = comparison_rows(comparison)
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    table = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return f"{table}\n\n{_cell(comparison_note(comparison))}\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def write_comparison(comparison: Comparison, directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write comparison.json and comparison.md into a folder, which is made if need be; returns their paths."""
    folder = Path(directory)
    return (
        write_text(folder / "comparison.json", json.dumps(comparison, indent=1, allow_nan=False) + "\n"),
        write_text(folder / "comparison.md", comparison_markdown(comparison)),
    )
