"""What is gained over something else, paired by site and seed, and means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Any

from medpfl.core.measure import Measure
from medpfl.report.reading import differences

Over = dict[str, float | None]
"""``mean`` and ``sd`` over seeds."""
_POINT = 0.01 + 1e-9
"""A percentage point, and what subtraction makes of it."""
_DIGITS = 12
"""Behind the point; what is beyond is what subtraction and means make of nothing."""


def over_seeds(values: Iterable[float | None]) -> Over:
    """Mean and standard deviation, with n - 1 in the denominator, of those that are there; None where too few are."""
    present = [float(value) for value in values if value is not None]
    return {
        "mean": fmean(present) if present else None,
        "sd": stdev(present) if len(present) > 1 else None,
    }


def gains(scores: Mapping[Any, Any], baseline: Mapping[Any, Any], measure: Measure) -> dict[str, Any]:
    """Mean and worst of a seed's sites, over seeds; in how many pairs it is better, and in what share below.

    Args:
        scores: by seed, the sites' measures, as ``results.json`` has them of a round.
        baseline: likewise.
        measure: the one to compare; above 0 is better, whichever way it is.
    """
    by_seed = [
        [round(value, _DIGITS) for value in differences(entry, baseline[seed], measure).values()]
        for seed, entry in scores.items()
    ]
    pairs = [value for values in by_seed for value in values]
    tolerated = _POINT if measure.share else 0
    return {
        **_rounded(over_seeds(round(fmean(values), _DIGITS) if values else None for values in by_seed)),
        "seeds": sum(map(bool, by_seed)),
        "worst": _rounded(over_seeds(min(values, default=None) for values in by_seed)),
        "below": sum(value < -tolerated for value in pairs) / len(pairs) if pairs else None,
        "better": sum(value > 0 for value in pairs),
        "worse": sum(value < 0 for value in pairs),
        "pairs": len(pairs),
    }


def _rounded(over: Over) -> Over:
    return {name: None if value is None else round(value, _DIGITS) for name, value in over.items()}
