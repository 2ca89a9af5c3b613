"""What the answer to whether sites should take part rests on: each method's gain over training alone, and its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from medpfl.core.measure import NONE
from medpfl.report.measures import change, change_head, first, printed, short_head
from medpfl.report.trained_alone import REFERENCE
from medpfl.report.words import percent

Test = dict[str, float | int | None]
"""``t``, ``df`` and ``p``; None where nothing tells them."""
TITLE = "Against training alone"


def gain_over_alone(group: Mapping[str, Any]) -> Any:
    """What a method gains over the best models trained alone in the comparison: of local training, or beside a method.

    Those beside a method have its steps at the end too, and its settings of training.
    """
    return group.get("to_best_alone") or group.get("to_own_rival") or group["to_local"]


def name_of(group: Mapping[str, Any]) -> str:
    """What it is judged by, in words."""
    if best := group.get("to_best_alone"):
        return best["baseline"]
    return "its own rival" if group.get("to_own_rival") else group["to_local"]["baseline"]


def t_test(over: Mapping[str, float | None], seeds: int) -> Test:
    """Student's one-sided test over seeds that a mean is above 0.

    Args:
        over: ``mean`` and ``sd`` over seeds.
        seeds: how many.
    """
    mean, sd = over["mean"], over["sd"]
    if mean is None or not sd:  # one seed, or seeds that do not lie apart
        return {"t": None, "df": None, "p": None}
    from scipy.special import stdtr  # its import takes a third of what a page of a single run does

    t = mean * sqrt(seeds) / sd
    return {"t": t, "df": seeds - 1, "p": float(stdtr(seeds - 1, -t))}


def ends_unequally(group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a method trains on after the last round and the local training that it is paired with not as long."""
    if not (group.get("further") and group["to_local"]):
        return False
    if group["to_local"]["baseline"] == REFERENCE and group.get("to_own_rival"):
        return False  # which takes the same steps
    beside = {other["label"]: other.get("further", "") for other in groups}
    return beside.get(group["to_local"]["baseline"]) != group["further"]


def takes_more_steps(group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nothing that it is judged by, or what is better still, trains on at the end as it does."""
    best = group.get("to_best_alone")
    as_long = group.get("to_own_rival") or (best and best.get("further") == group.get("further"))
    return not as_long and ends_unequally(group, groups)


def judged(group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """``by`` what a method is judged, what that ``reaches``, the gain over it, and the tests of mean and worst site's.

    None where the answer leaves a method out: of local training, where nothing is paired with it, or where its steps at
    the end alone may be what is gained. The gain has ``mean`` and ``sd`` over ``seeds``, ``worst`` likewise, and
    ``below``, a share of sites.

    Args:
        group: of a comparison.
        groups: all of them.
    """
    gain = gain_over_alone(group)
    if gain is None or gain["mean"] is None or takes_more_steps(group, groups):
        return None
    tests = {"mean": t_test(gain, gain["seeds"]), "worst": t_test(gain["worst"], gain["seeds"])}
    kept = {name: gain[name] for name in ("seeds", "mean", "sd", "worst", "below")}
    return {"by": name_of(group), "reaches": _reached(group), **kept, "tests": tests}


def _reached(group: Mapping[str, Any]) -> float | None:
    """By what it is judged in the first measure, mean over sites and seeds."""
    if found := group.get("to_best_alone") or group.get("to_own_rival"):
        return found["reaches"]
    return next(iter(group["to_local"]["measures"].values()))["baseline"]["mean"]


def judged_rows(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column heads, and a row for each method that is judged."""
    measure = first(comparison)
    below = "Sites more than a point below" if measure.better == "higher" else "Sites more than a point worse"
    heads = ["Algorithm", "Judged by", f"Alone: {short_head(measure)}", change_head("Gain", measure), "t (df)", "p"]
    heads += [change_head("Worst site's gain", measure), "t (df)", "p", below if measure.share else "Sites worse"]
    rows = []
    for group in comparison["groups"]:
        if of := group.get("judged"):
            mean, worst = of["tests"]["mean"], of["tests"]["worst"]
            rows.append(
                [
                    group["label"],
                    of["by"],
                    printed(measure, of["reaches"]),
                    change(measure, of["mean"], of["sd"]),
                    *_told(mean),
                    change(measure, *of["worst"].values()),
                    *_told(worst),
                    NONE if of["below"] is None else percent(of["below"]),
                ]
            )
    return heads, rows


def judged_note(comparison: Mapping[str, Any]) -> str:
    """What the rows are."""
    spread = ", ± standard deviation over seeds" if len(comparison["seeds"]) > 1 else ""
    return (
        f"What the answer rests on: gains paired by site and seed{spread}; the worst site's is a seed's lowest. p: "
        "Student's one-sided t test over seeds that the gain is above 0, df = seeds - 1, not corrected for the number "
        f"of methods. Alone: what that by which it is judged reaches{', mean over seeds' if spread else ''}."
    )


def _told(test: Test) -> list[str]:
    if test["p"] is None:
        return [NONE, NONE]
    p = test["p"]
    told = "< 0.001" if p < 0.001 else "> 0.999" if p > 0.999 else f"{p:.3f}"
    return [f"{test['t']:.2f} ({test['df']})", told]
