"""Which value of a swept setting validation data choose, and what the test says of it.

The best of a sweep's test figures is flattered by the choice among them; who reports a tuned method reports these.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from medpfl.core.measure import Measure
from medpfl.core.numbers_in_words import count
from medpfl.report.gains import gains, over_seeds
from medpfl.report.measures import first
from medpfl.report.reading import Results, selected, worst_site
from medpfl.report.side_by_side import baseline
from medpfl.report.sweep import Sweeping, Swept, figure_heads, figures
from medpfl.report.trained_alone import to_own_rival

Chosen = dict[str, Any]


def chosen_values(points: Sequence[Sequence[Results]], measure: Measure) -> list[int] | None:
    """For each seed which point has the best mean over sites of a measure on validation data.

    Of equals it is the first. It is the measure of the models that sites use in the end, with all that a method does to
    them after the last round.

    Args:
        points: at each value a method's runs, one for each seed; none where one ended early.
        measure: the one that decides.

    Returns:
        By seed the point's place; None where no value has runs, or one of them does not tell the measure, as where
        there are no validation data.
    """
    told = {k: [_validated(run, measure) for run in runs] for k, runs in enumerate(points) if runs}
    if not told or any(value is None for values in told.values() for value in values):
        return None
    seeds = range(len(next(iter(told.values()))))
    return [max(told, key=lambda k: round(measure.gain(told[k][seed], 0), 12)) for seed in seeds]


def with_chosen(found: Swept, at_each: Sequence[Mapping[int, Sequence[Results]]]) -> Swept:
    """The content of sweep.json with what validation data choose: ``chosen`` of every group.

    It is None where sites have other data at each value, so that values are no choice, and where validation data are
    not told. Else it has ``values``, the chosen point's place by seed (None: the value changes nothing), ``names``,
    what is swept that changes the method's runs, and over the seeds' chosen runs ``measure``, ``worst``, ``to_local``,
    against the local training that it is paired with at the values (``baseline``), at the value that its validation
    data choose, and ``to_own_rival``.

    Args:
        found: of :func:`medpfl.report.sweep.swept`.
        at_each: see there.
    """
    measure, seeds = first(found), found["seeds"]
    runs: list[dict[Any, Results] | None] = []
    for index, group in enumerate(found["groups"]):
        points = [of.get(index, ()) for of in at_each]
        places = None if found["sweep"]["other_sites"] else chosen_values(points, measure)
        runs.append(places and {seed: points[k][i] for i, (seed, k) in enumerate(zip(seeds, places, strict=True))})
        names = _that_change(Sweeping.read(found), points)
        group["chosen"] = places and {
            "values": {str(seed): k if names else None for seed, k in zip(seeds, places, strict=True)},
            "names": names,
        }
    for index, (of, group) in enumerate(zip(runs, found["groups"], strict=True)):
        if of:
            local = None if group["algorithm"] == "local" else _local(index, at_each, seeds)
            group["chosen"] |= _figures(of, None if local is None else runs[local], measure)
            group["chosen"]["baseline"] = None if local is None else found["groups"][local]["label"]
    return found


def chosen_rows(found: Swept) -> tuple[list[str], list[list[str]]]:
    """Column heads, and a row for each method of which a value was chosen; no row where none was."""
    sweeping, measure = Sweeping.read(found), first(found)
    groups = [group for group in found["groups"] if group.get("chosen")]
    with_own = any(group["chosen"]["to_own_rival"] for group in groups)
    rows = [
        [
            group["label"],
            chosen_in_words(group, sweeping) or "–",
            *figures(measure, group["chosen"]["measure"], group["chosen"], with_own),
        ]
        for group in groups
    ]
    return ["Algorithm", "Chosen", *figure_heads(measure, with_own)], rows


def chosen_in_words(group: Mapping[str, Any], sweeping: Sweeping) -> str:
    """``lambda=0.5 (2 seeds); lambda=1 (1 seed)``, of what changes its runs; empty where nothing does."""
    chosen = group["chosen"]
    labels = [sweeping.label(k, chosen["names"]) for k in chosen["values"].values() if k is not None]
    numbers = Counter(labels)
    several = len(numbers) > 1
    return "; ".join(label + (f" ({count(n, 'seed')})" if several else "") for label, n in numbers.most_common())


def chosen_note(found: Swept) -> str:
    """What the chosen rows are, or why there are none."""
    if found["sweep"]["other_sites"]:
        return ""  # said beside the table of all values
    measure = first(found)
    if not any(group.get("chosen") for group in found["groups"]):
        return f"No value is chosen: not all runs tell {measure.title} on validation data."
    twice = (
        " The same cases choose the weights of a blend and between models where sites use best: of values of use they "
        "speak too well of these."
    )
    return (
        f"Chosen: for each seed the value with the best {measure.title} on validation data, mean over sites, of the "
        "models that sites use in the end (of equals the first); then that run's test. Local training's value is "
        "chosen likewise. The best test figure of all values is flattered by having been looked for."
    ) + twice * ("use" in Sweeping.read(found).names)


def _local(index: int, at_each: Sequence[Mapping[int, Sequence[Results]]], seeds: Sequence[Any]) -> int | None:
    """The place of the local training that a method is paired with at the values: of several the one set most alike."""
    for runs in at_each:
        by_method = {place: dict(zip(seeds, own, strict=True)) for place, own in runs.items()}
        if index in by_method:
            place = baseline("local", by_method[index], by_method)
            if place is not None:
                return place
    return None


def _figures(runs: Mapping[Any, Results], local: Mapping[Any, Results] | None, measure: Measure) -> dict[str, Any]:
    scores = {seed: selected(run) for seed, run in runs.items()}
    alone = local and {seed: selected(run) for seed, run in local.items()}
    worst = [worst_site(entry, measure) for entry in scores.values()]
    return {
        "measure": over_seeds(entry["mean"].get(measure.name) for entry in scores.values()),
        "worst": over_seeds(of and of[1] for of in worst),
        "to_local": alone and gains(scores, alone, measure),
        "to_own_rival": to_own_rival(runs, measure),
    }


def _validated(run: Results, measure: Measure) -> float | None:
    return ((run["final"].get("validation") or {}).get("mean") or {}).get(measure.name)


def _that_change(sweeping: Sweeping, points: Sequence[Sequence[Results]]) -> list[str]:
    """What is swept without what the runs are the same for: in a grid a setting that the method has not."""

    def alike(one: int, other: int) -> bool:
        return len(points[one]) == len(points[other]) and all(map(operator.is_, points[one], points[other]))

    every = range(len(points))
    if all(alike(0, k) for k in every):
        return []
    idle = []
    for i, name in enumerate(sweeping.names):
        rest = [(*value[:i], *value[i + 1 :]) for value in sweeping.values]
        pairs = [(a, b) for a in every for b in every if a < b and rest[a] == rest[b]]
        if pairs and all(alike(a, b) for a, b in pairs):
            idle.append(name)
    return [name for name in sweeping.names if name not in idle]
