"""The tables that the page has of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from medpfl.core.measure import Measure
from medpfl.core.numbers_in_words import size
from medpfl.report.measures import (
    NONE,
    all_measures,
    by_patient,
    capital,
    change,
    change_head,
    classes_in,
    counting_classes,
    first,
    head,
    interval_by,
    measures_of,
    printed,
    short_head,
    spread,
    with_interval,
)
from medpfl.report.page_parts import Table
from medpfl.report.reading import (
    Results,
    class_names,
    differences,
    is_local,
    local_reference,
    mean_or_none,
    selected,
    worst_site,
)
from medpfl.report.words import duration, site_name


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
    """Test measures of every site, their mean and the worst, beside training alone where there is a reference."""
    scores = selected(run)
    reference = None if is_local(run) else local_reference(run)
    measures, begun = measures_of(run), first(run)
    gains = differences(scores, reference, begun)
    counted, classes = counting_classes(measures, scores["sites"]), len(class_names(run))
    heads = [
        "Site",
        "Train",
        tested_head(run, scores["sites"]),
        *(_interval_head(m, scores["sites"]) for m in measures),
    ]
    heads += [f"Classes in {m.title}" for m in counted]
    heads += [f"Alone: {begun.titled}", change_head("To alone", begun)] if reference else []
    rows = []
    for name, entry in scores["sites"].items():
        row = [
            site_name(run, name),
            _whole(run["data"]["sites"].get(name, {}).get("train")),
            _whole(entry.get("n")),
            *(with_interval(m, entry) for m in measures),
            *(classes_in(m, entry, classes) for m in counted),
        ]
        if reference:
            row += [printed(begun, reference["sites"].get(name, {}).get(begun.name)), change(begun, gains.get(name))]
        rows.append(row)
    none = [""] * len(counted)
    means = [spread(m, scores["mean"].get(m.name), scores["std"].get(m.name)) for m in measures]
    foot = [["Mean ± sd", "", "", *means, *none]]
    foot.append(["Worst site", "", "", *(_at(m, worst_site(scores, m)) for m in measures), *none])
    if reference:
        foot[0] += [printed(begun, reference["mean"].get(begun.name)), change(begun, mean_or_none(gains.values()))]
        least = min(gains, key=gains.__getitem__) if gains else None
        foot[1] += [
            _at(begun, worst_site(reference, begun)),
            f"{change(begun, gains[least])} ({least})" if least else NONE,
        ]
    return Table("Test results of every site", heads, rows, foot)


def tested_head(run: Results, sites: Mapping[str, Any]) -> str:
    """Over the numbers of test cases; ``sites`` have their measures."""
    return "Test patients" if by_patient(run, sites) else "Test"


def _interval_head(measure: Measure, sites: Mapping[str, Any]) -> str:
    if not measure.interval:
        return short_head(measure)
    return f"{short_head(measure)} [95 % CI{interval_by(measure, sites.values())}]"


def further_measures(run: Results) -> list[Measure]:
    """Those that any site has: without validation cases there is no threshold, and nothing that is measured at it."""
    sites = selected(run)["sites"].values()
    return [m for m in all_measures(run) if m.further and any(entry.get(m.name) is not None for entry in sites)]


def further_table(run: Results) -> Table | None:
    """Every site's further measures with their intervals; None where there are none."""
    scores = selected(run)
    if not (there := further_measures(run)):
        return None
    rows = [
        [site_name(run, name), *(with_interval(m, entry) for m in there)] for name, entry in scores["sites"].items()
    ]
    means = [spread(m, scores["mean"].get(m.name), scores["std"].get(m.name)) for m in there]
    worst = [_at(m, worst_site(scores, m)) for m in there]
    heads = ["Site", *(f"{head(m)} [95 % CI]" for m in there)]
    return Table("Further measures of every site", heads, rows, [["Mean ± sd", *means], ["Worst site", *worst]])


def classes_table(run: Results) -> Table | None:
    """A measure of every structure or label at every site; None where a measure has one value alone."""
    sites = selected(run)["sites"]
    for measure in measures_of(run):
        for key in (f"{measure.name}_by_class", f"{measure.name}_by_label"):
            found = {name: entry[key] for name, entry in sites.items() if entry.get(key)}
            if found and (number := max(map(len, found.values()))) > 1:
                rows = [
                    [site_name(run, name), *(printed(measure, value) for value in values)]
                    for name, values in found.items()
                ]
                heads = ["Site", *_names(run, number)]
                return Table(f"{capital(measure.title)} of each {key.rpartition('_')[2]}", heads, rows)
    return None


def _names(run: Results, number: int) -> list[str]:
    """Of labels, or of the classes beside the background; numbers where the data do not name them."""
    names = [str(name) for name in run["data"].get("classes") or ()][-number:]
    return names if len(names) == number else [str(n + 1) for n in range(number)]


def _at(measure: Measure, worst: tuple[str, float] | None) -> str:
    return f"{measure.number(worst[1])} ({worst[0]})" if worst else NONE


def _whole(value: int | None) -> str:
    return NONE if value is None else str(value)


def forgetting_table(run: Results, found: dict[str, Any]) -> Table:
    """A site's model on its own and on the other sites' test data, before and after one more local training."""

    measure = first(run)

    def row(name: str, measured: Any) -> list[str]:
        cells = [name]
        for which in ("others", "own"):
            before, after = (measured.get(which, {}).get(when, {}).get(measure.name) for when in ("before", "after"))
            gain = None if before is None or after is None else measure.gain(after, before)
            cells += [printed(measure, before), printed(measure, after), change(measure, gain)]
        return cells

    heads = ["Site"]
    for which in ("Others'", "Own"):
        heads += [f"{which} before", f"{which} after", change_head(f"{which} change", measure)]
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
