"""Whether sites should take part, and with which method: by the mean over sites, and by the worst site."""

from __future__ import annotations

from typing import Any

from medpfl.core.measure import Measure
from medpfl.report.measures import BETTER, first
from medpfl.report.side_by_side import Comparison
from medpfl.report.words import percent


def advice(comparison: Comparison) -> list[str]:
    """Sentences; none where nothing is paired with local training."""
    paired = [group for group in comparison["groups"] if (_gain(group) or {}).get("mean") is not None]
    if not paired:
        return []
    by_mean = max(paired, key=lambda group: (_mean(group), _worst(group)))
    by_worst = max(paired, key=lambda group: (_worst(group), _mean(group)))
    measure = first(comparison)
    verb = "is best" if _mean(by_mean) > 0 else "loses least" if _mean(by_mean) else "is level"
    and_which = "" if by_mean is by_worst else f"{by_worst['label']} "
    best = (
        f"Against training alone {by_mean['label']} {verb} by the mean over sites ({_told(measure, _mean(by_mean))}) "
        f"and {and_which}by the worst site ({_told(measure, _worst(by_worst))} there; "
        f"{percent(_gain(by_worst)['below'])} of sites are {_below(measure)})."
    )
    answer = f"Should a site take part? {_answer(paired, by_mean, by_worst, measure, len(comparison['seeds']) > 1)}."
    own = [group["label"] for group in paired if group.get("to_own_rival")]
    if own:
        answer += f" {' and '.join(own)} {'is' if len(own) == 1 else 'are'} judged by each site's own rival here."
    if len(paired) > 1 and _mean(by_mean) > 0:
        answer += f" The best of {len(paired)} by these same test cases will as a rule gain less on others."
    return [best, answer]


def _answer(
    paired: list[dict[str, Any]], by_mean: dict[str, Any], by_worst: dict[str, Any], measure: Measure, several: bool
) -> str:
    """By the method that gains most on average of those whose worst site surely does not lose."""
    seeds = " on average over seeds" if several else " with this one seed"
    if _mean(by_mean) <= 0:
        return "By these figures not: with no method do sites do better on average than alone"
    if _worst(by_worst) < 0 and -_worst(by_worst) > _spread(by_worst):
        return (
            f"By these figures on average, with {by_mean['label']}; but with every method the worst site loses{seeds}"
        )
    if not (sure := [group for group in paired if _worst(group) >= 0 and _worst(group) > _spread(group)]):
        told = measure.signed(_worst(by_worst)), measure.told(_spread(by_worst)).lstrip("+")
        what = "it does not lose" if _worst(by_worst) >= 0 else "it loses"
        but, its = ("but", "gain") if _worst(by_worst) >= 0 else ("and", "loss")
        return (
            f"By these figures on average, with {by_mean['label']}; for the worst site that cannot be told: with "
            f"{by_worst['label']} {what}{seeds}, {but} its {its} ({' ± '.join(told)}) is no more than seeds lie apart"
        )
    safe = max(sure, key=_mean)
    found = f"By these figures yes, with {safe['label']}, where the worst site does not lose{seeds}"
    if _mean(by_mean) <= _mean(safe):
        return found
    verb = "loses" if _worst(by_mean) < 0 else "may lose"
    return f"{found}; {by_mean['label']} gives more on average, but its worst site {verb}"


def _gain(group: dict[str, Any]) -> Any:
    """Over each site's own rival where there is one, which has the method's steps at the end too; else over local."""
    return group.get("to_own_rival") or group["to_local"]


def _spread(group: dict[str, Any]) -> float:
    """Of the worst site's gain over seeds; below 0 of one seed, which has none."""
    sd = _gain(group)["worst"]["sd"]
    return -1.0 if sd is None else sd


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
