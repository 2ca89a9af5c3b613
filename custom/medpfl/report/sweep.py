"""A swept setting as figures: what every method reaches at each value, over seeds and by site."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from medpfl.core.measure import Measure
from medpfl.report.compare_table import notes_of
from medpfl.report.measures import all_measures, change, change_head, first, printed, short_head, spread
from medpfl.report.one_class import one_class_words
from medpfl.report.reading import Results, selected, site_scores
from medpfl.report.side_by_side import Comparison, compare, leading
from medpfl.report.trained_alone import OWN_RIVAL, REFERENCE, trained_otherwise
from medpfl.report.unequal import code_of, code_of_others, more_each_round, states_of_code, unequal_ends
from medpfl.report.unfinished import Unfinished, unfinished_words

Swept = dict[str, Any]
_OF_A_POINT = (
    "measures", "worst", "to_local", "to_own_rival", "trained_otherwise", "further", "ends_unequally", "each_round",
    "forgetting", "sites", "by_seed", "rounds", "local_epochs", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class Sweeping:
    """What is swept, and over what.

    Attributes:
        names: of the settings, which change together.
        values: at each point one for each name.
        other_sites: a site's data differ from value to value.
    """

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    other_sites: bool = False

    @classmethod
    def read(cls, said: Swept) -> Sweeping:
        """From sweep.json."""
        of = said["sweep"]
        return cls(tuple(of["names"]), tuple(map(tuple, of["values"])), of["other_sites"])

    def label(self, index: int, names: Sequence[str] | None = None) -> str:
        """``lambda=0.5``, of one point; of these names alone, if some are given."""
        pairs = zip(self.names, self.values[index], strict=True)
        return ", ".join(f"{name}={value}" for name, value in pairs if names is None or name in names)

    def folder(self, index: int) -> str:
        """The label as a folder's name."""
        return "".join(c if c.isalnum() or c in "-.=" else "_" for c in self.label(index))

    def tick(self, index: int) -> str:
        """What stands at the axis: the values alone."""
        begun, *rest = map(str, self.values[index])
        return f"{begun} ({', '.join(rest)})" if rest else begun

    @property
    def title(self) -> str:
        """What the axis shows."""
        begun, *rest = self.names
        return f"{begun} ({', '.join(rest)})" if rest else begun

    @property
    def places(self) -> list[float]:
        """Where the points are on the axis: at their numbers, or one after the other where they are words."""
        begun = [value[0] for value in self.values]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in begun)
        return (
            list(map(float, begun)) if numbers and len(set(begun)) == len(begun) else [*map(float, range(len(begun)))]
        )


def swept(
    sweeping: Sweeping,
    methods: Sequence[tuple[str, str]],
    at_each: Sequence[Mapping[int, Sequence[Results]]],
    unfinished: Sequence[Unfinished] = (),
) -> Swept:
    """The content of sweep.json.

    Args:
        sweeping: what is swept.
        methods: labels and algorithms.
        at_each: at each value the finished runs, one for each seed, by the method's place; a method with a run that
            ended early has none there.
        unfinished: which runs ended early.

    Returns:
        ``schema``, ``sweep``, ``measures``, ``data``, ``seeds``, ``unfinished``, and ``groups``: by method its
        ``label``, ``algorithm`` and, in the order of the values, ``points``: the comparison's figures at that value,
        and under ``runs`` by seed every measure of every site. Where a run ended early a point has none of them.
    """
    at_values = [[run for own in runs.values() for run in own] for runs in at_each]
    every = [run for runs in at_values for run in runs]
    measures = leading(every)
    compared = [compare(runs, measures=measures) if runs else None for runs in at_values]
    begun = next(filter(None, compared))
    groups = []
    for index, (label, algorithm) in enumerate(methods):
        points = []
        for runs, comparison in zip(at_each, compared, strict=True):
            own = runs.get(index, ())
            group = comparison["groups"][list(runs).index(index)] if comparison and own else _nothing(begun)
            points.append(
                {
                    **{key: group[key] for key in _OF_A_POINT},
                    "runs": {str(run["config"]["seed"]): _sites(run) for run in own},
                }
            )
        groups.append({"label": label, "algorithm": algorithm, "points": points})
    return {
        "schema": 1,
        "sweep": {
            "names": list(sweeping.names),
            "values": [list(value) for value in sweeping.values],
            "other_sites": sweeping.other_sites,
        },
        "measures": begun["measures"],
        "data": [comparison and comparison["data"] for comparison in compared],
        "seeds": begun["seeds"],
        "code": code_of(every),
        "code_of_others": code_of_others(every),
        "one_class": [comparison and comparison["one_class"] for comparison in compared],
        "groups": groups,
        "unfinished": list(unfinished),
    }


def _nothing(like: Comparison) -> dict[str, Any]:
    """The figures of a group that has none."""
    none = {"mean": None, "sd": None}
    measured = {"measures": {of["name"]: none for of in like["measures"]}, "worst": none, "forgetting": none}
    return {**dict.fromkeys(_OF_A_POINT), **measured, "sites": {}, "by_seed": {}}


def data_of(found: Swept) -> list[dict[str, Any]]:
    """The data of the values at which runs came to an end; at least one."""
    return [data for data in found["data"] if data]


def _sites(run: Results) -> dict[str, dict[str, float | None]]:
    """By site its test measures at the selected round."""
    scores = selected(run)
    by_measure = {m.name: site_scores(scores, m.name) for m in all_measures(run)}
    sites = run["data"]["sites"] or (scores or {}).get("sites", {})  # of a function's data nobody knows more
    return {site: {name: of.get(site) for name, of in by_measure.items()} for site in sites}


def sweep_rows(found: Swept) -> tuple[list[str], list[list[str]]]:
    """The sweep as text: column heads, and a row for each method and value."""
    sweeping, measure = Sweeping.read(found), first(found)
    with_own = _with_own_rivals(found)
    rows = [
        [group["label"], *map(str, value), *figures(measure, point["measures"][measure.name], point, with_own)]
        for group in found["groups"]
        for value, point in zip(sweeping.values, group["points"], strict=True)
    ]
    return ["Algorithm", *sweeping.names, *figure_heads(measure, with_own)], rows


def figure_heads(measure: Measure, with_own: bool) -> list[str]:
    """The heads over :func:`figures`."""
    heads = [short_head(measure), "Worst site", change_head("To local", measure)]
    heads += [change_head("Worst site's difference to local", measure)]
    return heads + ([change_head("To own rival", measure)] if with_own else [])


def figures(measure: Measure, reached: Mapping[str, Any], of: Mapping[str, Any], with_own: bool) -> list[str]:
    """What is reached, at the worst site, and over local training; and over own rivals where some method has them.

    Args:
        measure: the first one.
        reached: its mean and deviation over seeds.
        of: ``worst``, ``to_local`` and ``to_own_rival``, as a comparison has them.
        with_own: whether there is a column for own rivals.
    """
    local, own = of["to_local"], of.get("to_own_rival")
    gains = [(local["mean"], local["sd"]), tuple(local["worst"].values())] if local else [None, None]
    gains += [own and (own["mean"], own["sd"])] if with_own else []
    told = ("–" if gain is None else change(measure, *gain) for gain in gains)
    return [spread(measure, **reached), printed(measure, of["worst"]["mean"]), *told]


def _points(found: Swept) -> Iterator[dict[str, Any]]:
    """Of all methods and values, each with its method's label."""
    for group in found["groups"]:
        yield from ({**point, "label": group["label"]} for point in group["points"])


def _told_apart(found: Swept, *keys: str) -> list[dict[str, Any]]:
    """Points with their method's label, one of each method, or all with their values where these keys differ."""
    sweeping, told = Sweeping.read(found), []
    for group in found["groups"]:
        paired = [(k, point) for k, point in enumerate(group["points"]) if point["to_local"]]
        differ = len({tuple(point.get(key) for key in keys) for _, point in paired}) > 1
        for k, point in paired if differ else paired[:1]:
            told.append({**point, "label": group["label"] + f" at {sweeping.label(k)}" * differ})
    return told


def _of_one_class(found: Swept) -> list[str]:
    """Sentences of sites whose test cases are all of one class, with the values where these differ in that."""
    sweeping, title = Sweeping.read(found), first(found).title
    words = [one_class_words(of, title) for of in found.get("one_class") or ()]
    if len({*words}) == 1:
        return words[:1]
    return [f"{sweeping.label(k)}: {said}" for k, said in enumerate(words) if said]


def _with_own_rivals(found: Swept) -> bool:
    return any(point.get("to_own_rival") for point in _points(found))


def sweep_note(found: Swept) -> str:
    """What the figures are, in plain sentences."""
    sweeping, measure, data = Sweeping.read(found), first(found), data_of(found)
    seeds = found["seeds"]
    sentences = [
        f"{data[0]['name']}, model {' and '.join(dict.fromkeys(str(m) for of in data for m in of['models']))}.",
        f"Test {measure.title} at the round chosen on validation data (the last where there are none), mean over sites"
        + (f", ± standard deviation over {len(seeds)} seeds." if len(seeds) > 1 else "; one seed shows no spread."),
    ]
    if sweeping.other_sites:
        sentences.append("Sites have other data at each value: a name at one value and at the next are two sites.")
    if _with_own_rivals(found):
        sentences.append(f"{OWN_RIVAL}.")
    told = {(point["label"], str(point.get("trained_otherwise"))): point for point in _points(found)}
    sentences.append(trained_otherwise(list(told.values())))
    sentences.append(more_each_round(_told_apart(found, "each_round")))
    sentences.append(unequal_ends(_told_apart(found, "further", "ends_unequally")))
    sentences += [*states_of_code(found), *_of_one_class(found)]
    for key, what in (("rounds", "rounds"), ("local_epochs", "local epochs")):
        effort = {point[key] for point in _points(found)} - {None}
        if len(effort) > 1 and key not in sweeping.names:
            sentences.append(f"Numbers of {what} differ: {', '.join(map(str, sorted(effort)))}.")
    others = [k for k, label in enumerate(_baselines(found)) if label == REFERENCE]
    if others and len(others) < len(sweeping.values):
        at = ", ".join(map(sweeping.label, others))
        sentences.append(f"Differences to local are to {REFERENCE} at {at}, where local training has no figures.")
    return " ".join(filter(None, [*sentences, unfinished_words(found["unfinished"])]))


def sweep_notes(found: Swept) -> list[str]:
    """The runs' notes, a line each that begins with the methods that have it, and the values where not all have it."""
    sweeping, groups = Sweeping.read(found), []
    for group in found["groups"]:
        noted = [point.get("notes") or [] for point in group["points"]]
        every = [note for notes in noted for note in notes]
        for k, note in enumerate(every):
            if note in every[:k]:
                continue
            at = [sweeping.label(index) for index, notes in enumerate(noted) if note in notes]
            where = f" at {' and '.join(at)}" if len(at) < len(noted) else ""
            groups.append({"label": group["label"] + where, "notes": [note]})
    return notes_of({"groups": groups})


def _baselines(found: Swept) -> list[str | None]:
    """At each value what local training is; None where nothing is paired with it."""
    columns = zip(*(group["points"] for group in found["groups"]), strict=True)
    return [next((p["to_local"]["baseline"] for p in points if p["to_local"]), None) for points in columns]


def sweep_csv(found: Swept) -> str:
    """One row for each method, value, seed and site, with every measure; for other tools to draw."""
    sweeping, measures = Sweeping.read(found), [m.name for m in all_measures(found)]
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["algorithm", "label", *sweeping.names, "seed", "site", *measures])
    writer.writerows(_csv_rows(found, sweeping, measures))
    return lines.getvalue()


def _csv_rows(found: Swept, sweeping: Sweeping, measures: Sequence[str]) -> Iterator[list[Any]]:
    for group in found["groups"]:
        for value, point in zip(sweeping.values, group["points"], strict=True):
            for seed, sites in point["runs"].items():
                for site, of in sites.items():
                    figures = ["" if of[name] is None else of[name] for name in measures]
                    yield [group["algorithm"], group["label"], *value, seed, site, *figures]
