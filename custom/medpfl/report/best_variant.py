"""Whether sites should take part, and with which method: by the mean over sites, and by the worst site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medpfl.core.measure import BETTER, Measure
from medpfl.report.judged import gain_over_alone as _gain
from medpfl.report.judged import t_test, takes_more_steps
from medpfl.report.measures import first
from medpfl.report.side_by_side import Comparison
from medpfl.report.words import percent


def advice(comparison: Comparison) -> list[str]:
    """Sentences; none where nothing is paired with local training."""
    if (comparison.get("one_class") or {}).get("meaningless"):
        title = first(comparison).title
        return [f"Should a site take part? No {title} tells that here: at most sites all test cases are of one class."]
    groups = comparison["groups"]
    paired = [group for group in groups if (_gain(group) or {}).get("mean") is not None]
    unequal = [group for group in paired if takes_more_steps(group, groups)]
    if not paired:
        return []
    if len(unequal) == len(paired):
        return [f"Should a site take part? That cannot be told: {_unequal(unequal)}."]
    judged = [group for group in paired if group not in unequal]
    by_mean = max(judged, key=lambda group: (_mean(group), _worst(group)))
    by_worst = max(judged, key=lambda group: (_worst(group), _mean(group)))
    measure = first(comparison)
    verb = {"+": "is best", "-": "loses least"}.get(measure.signed(_mean(by_mean))[0], "is level")
    and_which = "" if by_mean is by_worst else f"{by_worst['label']} "
    best = (
        f"Against training alone {by_mean['label']} {verb} by the mean over sites ({_told(measure, _mean(by_mean))}) "
        f"and {and_which}by the worst site ({_told(measure, _worst(by_worst))} there; "
        f"{percent(_gain(by_worst)['below'])} of sites are {_below(measure)})."
    )
    answer = f"Should a site take part? {_answer(judged, by_mean, measure, len(comparison['seeds']))}."
    answer += "".join(_yardsticks(judged, measure))
    if more := [f"{group['label']} ({group['each_round']})" for group in judged if group.get("each_round")]:
        train = "trains" if len(more) == 1 else "train"
        answer += (
            f" In each round {', '.join(more)} {train} more than local training does: how much of the gain that is, is "
            "not told here."
        )
    if other := [
        group["label"] for group in judged if group.get("trained_otherwise") and _gain(group) is group["to_local"]
    ]:
        trains = "trains" if len(other) == 1 else "train"
        answer += (
            f" {' and '.join(other)} {trains} by other settings than local training does: how much of the gain that "
            "is, is not told here."
        )
    if unequal:
        answer += f" Left out of this: {_unequal(unequal)}."
    if len(judged) > 1 and _mean(by_mean) > 0:
        answer += f" The best of {len(judged)} by these same test cases will as a rule gain less on others."
    return [best, answer]


def _unequal(groups: list[dict[str, Any]]) -> str:
    names = " and ".join(group["label"] for group in groups)
    train, them = ("trains", "it") if len(groups) == 1 else ("train", "them")
    return (
        f"{names} {train} on at the end, and the local training beside {them} not as long, so that the steps alone may "
        "be what is gained; only sites that train alone with the same steps, in the run or as local:finetune_steps=N, "
        "tell"
    )


def _answer(paired: list[dict[str, Any]], by_mean: dict[str, Any], measure: Measure, seeds: int) -> str:
    """By the method that gains most on average of those whose worst site surely does not lose."""
    if _mean(by_mean) <= 0:
        return "By these figures not: with no method do sites do better on average than alone"
    if all(_gain(group)["sd"] is None for group in paired):
        return f"One seed cannot tell; by it on average, with {by_mean['label']}. Three show how far seeds lie apart"
    if not (ahead := [group for group in paired if _surely(_gain(group), _gain(group), seeds)]):
        return f"That cannot be told: {_within(measure, by_mean['label'], _gain(by_mean), 'sites gain', 'gain')}"
    by_mean = max(ahead, key=_mean)
    if not (safe := [group for group in ahead if _loses_nowhere(_gain(group), seeds)]):
        losing = [group for group in paired if _surely(_gain(group)["worst"], _gain(group), seeds, -1)]
        if not (untold := [group for group in ahead if group not in losing]):
            every = "every method" if len(losing) == len(paired) else "every method that surely gains"
            return f"By these figures on average, with {by_mean['label']}; but with {every} the worst site loses"
        by_worst = max(untold, key=lambda group: (_worst(group), _mean(group)))
        least = _gain(by_worst)["worst"]
        does, its = ("gains", "gain") if least["mean"] >= 0 else ("loses", "loss")
        within = _within(measure, by_worst["label"], least, f"it {does}", its)
        return f"By these figures on average, with {by_mean['label']}; for the worst site that cannot be told: {within}"
    best = max(safe, key=_mean)
    found = f"By these figures yes, with {best['label']}, where the worst site does not lose either"
    if _mean(by_mean) <= _mean(best):
        return found
    verb = "loses" if _worst(by_mean) < 0 else "may lose"
    return f"{found}; {by_mean['label']} gives more on average, but its worst site {verb}"


def _surely(over: dict[str, float | None], gain: dict[str, Any], seeds: int, sign: int = 1) -> bool:
    """Whether a mean over seeds is above 0 (or below, by the sign): Student's one-sided test at 5 %."""
    mean, sd = over["mean"], over["sd"]
    if mean is None or sd is None:
        return False
    p = t_test(over, gain.get("seeds", seeds))["p"]  # earlier comparisons do not say of how many
    return sign * mean > 0 if p is None else (p if sign > 0 else 1 - p) < 0.05


def _loses_nowhere(gain: dict[str, Any], seeds: int) -> bool:
    """Surely not at the worst site; or never at all, as where sites that would lose use their own model."""
    return _surely(gain["worst"], gain, seeds) or gain["worst"] == {"mean": 0, "sd": 0}


def _within(measure: Measure, label: str, gain: dict[str, Any], does: str, its: str) -> str:
    apart = "" if gain["sd"] is None else f" ± {measure.told(gain['sd']).lstrip('+')}"
    told = f"{measure.signed(gain['mean'])}{apart}"
    return f"with {label} {does} on average over seeds, but the {its} ({told}) is within what seeds lie apart"


def _yardsticks(judged: list[dict[str, Any]], measure: Measure) -> Iterator[str]:
    """By what groups are judged, where that is not the local training of the table."""
    if own := [g["label"] for g in judged if g.get("to_own_rival") and not g.get("to_best_alone")]:
        yield f" {' and '.join(own)} {'is' if len(own) == 1 else 'are'} judged by each site's own rival here."
    by_best: dict[str, list[dict[str, Any]]] = {}
    for group in judged:
        if best := group.get("to_best_alone"):
            by_best.setdefault(best["baseline"], []).append(group)
    for baseline, groups in by_best.items():
        names = " and ".join(group["label"] for group in groups)
        reached = measure.said(groups[0]["to_best_alone"]["reaches"])
        yield (
            f" {names} {'is' if len(groups) == 1 else 'are'} judged by {baseline}, the best that sites reach alone "
            f"here ({measure.title} {reached})."
        )


def _told(measure: Measure, gain: float) -> str:
    """With the measure where a reader might take less for worse."""
    return measure.told(gain) + ("" if measure.better == "higher" else f" of {measure.title}, {BETTER}")


def _below(measure: Measure) -> str:
    if not measure.share:
        return "worse than alone"
    return f"more than a point {'below' if measure.better == 'higher' else 'worse'}"


def _mean(group: dict[str, Any]) -> float:
    return _gain(group)["mean"]


def _worst(group: dict[str, Any]) -> float:
    return _gain(group)["worst"]["mean"]
