"""Which value of a swept setting validation data choose, and what the test says of it.

The best of a sweep's test figures is flattered by the choice among them; who reports a tuned method reports these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from medpfl.core.measure import Measure
from medpfl.report.gains import gains, over_seeds
from medpfl.report.measures import change, change_head, first, printed, short_head, spread
from medpfl.report.reading import Results, selected, worst_site
from medpfl.report.side_by_side import baseline
from medpfl.report.sweep import Sweeping, Swept
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
    return [max(told, key=lambda k: measure.gain(told[k][seed], 0)) for seed in seeds]


def with_chosen(found: Swept, at_each: Sequence[Mapping[int, Sequence[Results]]]) -> Swept:
    """The content of sweep.json with what validation data choose: ``chosen`` of every group.

    It is None where sites have other data at each value, so that values are no choice, and where validation data are
    not told. Else it has ``values``, the chosen point's place by seed (None: the value changes nothing), and over the
    seeds' chosen runs ``measure``, ``worst``, ``to_local``, against the local training that it is paired with at the
    values (``baseline``), at the value that its validation data choose, and ``to_own_rival``.

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
        same = all(len(of) == len(points[0]) and all(map(_is, of, points[0])) for of in points)
        group["chosen"] = places and {
            "values": {str(seed): None if same else k for seed, k in zip(seeds, places, strict=True)}
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
    heads = ["Algorithm", "Chosen", short_head(measure), "Worst site", change_head("To local", measure)]
    heads += [change_head("Worst site's difference to local", measure)]
    heads += [change_head("To own rival", measure)] if with_own else []
    return heads, [_row(group, sweeping, measure, with_own) for group in groups]


def chosen_in_words(group: Mapping[str, Any], sweeping: Sweeping) -> str:
    """``lambda=0.5 (2 seeds); lambda=1 (1 seed)``; empty where the value changes nothing."""
    numbers = Counter(k for k in group["chosen"]["values"].values() if k is not None)
    several = len(numbers) > 1
    return "; ".join(
        sweeping.label(k) + (f" ({n} seed{'s' * (n > 1)})" if several else "") for k, n in numbers.most_common()
    )


def chosen_note(found: Swept) -> str:
    """What the chosen rows are, or why there are none."""
    if found["sweep"]["other_sites"]:
        return ""  # said beside the table of all values
    measure = first(found)
    if not any(group.get("chosen") for group in found["groups"]):
        return f"No value is chosen: not all runs tell {measure.title} on validation data."
    return (
        f"Chosen: for each seed the value with the best {measure.title} on validation data, mean over sites, of the "
        "models that sites use in the end (of equals the first); then that run's test. Local training's value is "
        "chosen likewise. The best test figure of all values is flattered by having been looked for."
    )


def _local(index: int, at_each: Sequence[Mapping[int, Sequence[Results]]], seeds: Sequence[Any]) -> int | None:
    """The place of the local training that a method is paired with at the values: of several the one set most alike."""
    for runs in at_each:
        by_method = {place: dict(zip(seeds, own, strict=True)) for place, own in runs.items()}
        if index in by_method:
            place, found = baseline("local", by_method[index], by_method)
            if found is not None:
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


def _row(group: Mapping[str, Any], sweeping: Sweeping, measure: Measure, with_own: bool) -> list[str]:
    of = group["chosen"]
    local, own = of["to_local"], of["to_own_rival"]
    changes = [(local["mean"], local["sd"]), tuple(local["worst"].values())] if local else [None, None]
    changes += [own and (own["mean"], own["sd"])] if with_own else []
    return [
        group["label"],
        chosen_in_words(group, sweeping) or "–",
        spread(measure, **of["measure"]),
        printed(measure, of["worst"]["mean"]),
        *("–" if gain is None else change(measure, *gain) for gain in changes),
    ]


def _validated(run: Results, measure: Measure) -> float | None:
    return ((run["final"].get("validation") or {}).get("mean") or {}).get(measure.name)


def _is(one: Results, other: Results) -> bool:
    return one is other
