"""Whether sites should take part, and with which method: by the mean over sites, and by the worst site."""

from __future__ import annotations

from typing import Any

from medpfl.core.measure import Measure
from medpfl.report.measures import BETTER, first
from medpfl.report.side_by_side import Comparison
from medpfl.report.words import percent


def advice(comparison: Comparison) -> list[str]:
    """Sentences; none where nothing is paired with local training."""
    paired = [group for group in comparison["groups"] if (group["to_local"] or {}).get("mean") is not None]
    if not paired:
        return []
    by_mean = max(paired, key=lambda group: (_mean(group), _worst(group)))
    by_worst = max(paired, key=lambda group: (_worst(group), _mean(group)))
    measure = first(comparison)
    and_which = "" if by_mean is by_worst else f"{by_worst['label']} "
    best = (
        f"Against training alone {by_mean['label']} is best by the mean over sites ({_told(measure, _mean(by_mean))}) "
        f"and {and_which}by the worst site ({_told(measure, _worst(by_worst))} there; "
        f"{percent(by_worst['to_local']['below'])} of sites are {_below(measure)})."
    )
    seeds = " on average over seeds" if len(comparison["seeds"]) > 1 else ""
    return [best, f"Should a site take part? By these figures {_answer(by_mean, by_worst, seeds)}."]


def _answer(by_mean: dict[str, Any], by_worst: dict[str, Any], seeds: str) -> str:
    if _mean(by_mean) <= 0:
        return "not: with no method do sites do better on average than alone"
    if _worst(by_worst) < 0:
        return f"on average, with {by_mean['label']}; but with every method the worst site loses{seeds}"
    if _worst(by_mean) >= 0:
        return f"yes, with {by_mean['label']}, where the worst site does not lose{seeds}"
    return (
        f"yes, with {by_worst['label']}, where the worst site does not lose{seeds}; {by_mean['label']} gives more on "
        "average, but its worst site loses"
    )


def _told(measure: Measure, gain: float) -> str:
    """With the measure where a reader might take less for worse."""
    return measure.told(gain) + ("" if measure.better == "higher" else f" of {measure.title}, {BETTER}")


def _below(measure: Measure) -> str:
    if not measure.share:
        return "worse than alone"
    return f"more than a point {'below' if measure.better == 'higher' else 'worse'}"


def _mean(group: dict[str, Any]) -> float:
    return group["to_local"]["mean"]


def _worst(group: dict[str, Any]) -> float:
    return group["to_local"]["worst"]["mean"]
