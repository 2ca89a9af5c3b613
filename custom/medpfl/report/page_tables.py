"""The tables that the page has of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from medpfl.report.page_parts import Table
from medpfl.report.reading import (
    MEASURES,
    Results,
    class_names,
    differences,
    is_local,
    local_reference,
    mean_or_none,
    selected,
    worst_site,
)
from medpfl.report.words import NONE, auroc_interval, duration, points, score, site_name, size, spread


def failures_table(failures: list[dict[str, Any]]) -> Table:
    """What went wrong, when and where."""
    rows = [[str(failure.get(key, NONE)) for key in ("round", "site", "reason")] for failure in failures]
    return Table("Failures", ["Round", "Site", "Reason"], rows, numbers=(0,))


def impressions_table(made: list[tuple[int, dict[str, Any]]]) -> Table:
    """What the synthesis did after each round."""
    rows = [
        [str(round_), "-", "-", "-", str(entry["failed"])]
        if "failed" in entry
        else [
            str(round_),
            f"{entry['loss'][0]:.3f} → {entry['loss'][-1]:.3f}",
            f"{entry['constraint'][0]:.3f} → {entry['constraint'][-1]:.3f}",
            f"{entry['moved']:.4f}",
            duration(entry.get("seconds")),
        ]
        for round_, entry in made
    ]
    heads = ["After round", "Cross-entropy", "Constraint |M|", "Moved", "Time"]
    return Table("What the synthesis did", heads, rows)


def site_table(run: Results) -> Table:
    """Test measures of every site, their mean and the worst, beside local training where there is a reference."""
    scores = selected(run)
    reference = None if is_local(run) else local_reference(run)
    change = differences(scores, reference, "accuracy")
    classes = len(class_names(run))
    heads = ["Site", "Train", "Test", "Accuracy", "Balanced acc.", "AUC [95 % CI]", "Classes in AUC"]
    heads += ["Local accuracy", "To local (points)"] if reference else []
    rows = []
    for name, entry in scores["sites"].items():
        held = entry.get("auroc_classes")
        row = [
            site_name(run, name),
            _whole(run["data"]["sites"].get(name, {}).get("train")),
            _whole(entry.get("n")),
            score(entry.get("accuracy")),
            score(entry.get("balanced_accuracy")),
            auroc_interval(entry),
            NONE if held is None else f"{held} of {classes}" if classes else str(held),
        ]
        if reference:
            row += [score(reference["sites"].get(name, {}).get("accuracy")), points(change.get(name))]
        rows.append(row)
    foot = [["Mean ± sd", "", "", *(spread(scores["mean"].get(m), scores["std"].get(m)) for m in MEASURES), ""]]
    worst = [worst_site(scores, measure) for measure in MEASURES]
    foot.append(["Worst site", "", "", *(f"{w[1]:.3f} ({w[0]})" if w else NONE for w in worst), ""])
    if reference:
        foot[0] += [score(reference["mean"].get("accuracy")), points(mean_or_none(change.values()))]
        alone = worst_site(reference, "accuracy")
        least = min(change, key=change.__getitem__) if change else None
        foot[1] += [
            f"{alone[1]:.3f} ({alone[0]})" if alone else NONE,
            f"{points(change[least])} ({least})" if least else NONE,
        ]
    return Table("Test results of every site", heads, rows, foot)


def _whole(value: int | None) -> str:
    return NONE if value is None else str(value)


def forgetting_table(run: Results, found: dict[str, Any]) -> Table:
    """A site's model on its own and on the other sites' test data, before and after one more local training."""

    def row(name: str, measured: Any) -> list[str]:
        cells = [name]
        for which in ("others", "own"):
            before, after = (measured.get(which, {}).get(when, {}).get("accuracy") for when in ("before", "after"))
            change = None if before is None or after is None else after - before
            cells += [score(before), score(after), points(change)]
        return cells

    heads = ["Site"]
    for which in ("Others'", "Own"):
        heads += [f"{which} before", f"{which} after", f"{which} change (points)"]
    rows = [row(site_name(run, name), measured) for name, measured in found["sites"].items()]
    return Table("What local training makes a model forget", heads, rows, [row("Mean", found["mean"])])


def cost_table(run: Results) -> Table:
    """Bytes and seconds."""
    traffic, seconds = run.get("traffic") or {}, run.get("seconds") or {}
    each = {
        key: mean_or_none(site.get(key) for entry in run["rounds"] for site in entry["sites"].values())
        for key in ("sent_bytes", "received_bytes")
    }
    rows = [
        ["Sent by the sites, in all", size(traffic.get("sent_bytes"))],
        ["Received by the sites, in all", size(traffic.get("received_bytes"))],
        ["Sent per site and round", size(each["sent_bytes"])],
        ["Received per site and round", size(each["received_bytes"])],
        ["Time, in all", duration(seconds.get("total"))],
        ["Time to start", duration(seconds.get("start"))],
        ["Time of training", duration(seconds.get("training"))],
        ["Mean time of a round", duration(mean_or_none(entry.get("seconds") for entry in run["rounds"]))],
    ]
    return Table("Traffic and time", ["Measure", "Value"], rows)


def made_table(run: Results) -> Table:
    """Choices, settings, data and environment, by name."""
    data = {key: value for key, value in run["data"].items() if key != "sites"}
    rows = []
    for part, tree in (
        ("choice", run.get("choices")),
        ("setting", run["config"]),
        ("data", data),
        ("environment", run.get("environment")),
    ):
        rows += [[part, key, value] for key, value in _flat(tree or {})]
    return Table("How this run was made", ["Part", "Name", "Value"], rows, numbers=())


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is None or value == []:
            yield f"{prefix}{key}", NONE
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
