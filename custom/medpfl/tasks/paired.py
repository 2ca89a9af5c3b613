"""What one model gains over another on the same cases: differences of measures, each with a 95 % interval.

Closed forms: the accuracy's is Bonett and Price's for paired proportions (British Journal of Mathematical and
Statistical Psychology 65, 2012), the balanced accuracy's is the same over classes, which share its two added cases, and
the AUC's is DeLong's for two correlated curves (Biometrics 44, 1988), carried over to the mean over classes. Of fewer
than six patients, or cases, no difference is found: five agree by chance once in sixteen times. Two models that are
never right together are told apart too often (exactly: in up to 12.5 of 100 with 7 to 10 cases, in 3 to 9 with more),
others more rarely than at 5 %. How often intervals hold where patients have several cases, and that
the AUC's hold a true gain less often, is in docs/results.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from medpfl.core.gain import LEAST_PATIENTS, verdict
from medpfl.tasks.auc import as_log_odds, counts, paired_auc
from medpfl.tasks.intervals import (
    ALIKE,
    Z95,
    between_patients,
    by_patient,
    independent,
    of_one_patient,
    widest,
)
from medpfl.tasks.measures import correct

Difference = dict[str, float]
"""``difference`` and the ends ``low`` and ``high`` of its interval."""


def differences(
    new: np.ndarray,
    old: np.ndarray,
    labels: np.ndarray,
    whose: np.ndarray | None = None,
    counting: np.ndarray | None = None,
) -> dict[str, Difference | None]:
    """What the model with probabilities ``new`` gains over that with ``old``.

    Args:
        new: (n, classes).
        old: (n, classes).
        labels: (n,) whole numbers in [0, classes).
        whose: (n,) which patient each case is of, where some have several: see
            :func:`~medpfl.tasks.intervals.widest`.
        counting: see :func:`medpfl.tasks.measures.measures`.

    Returns:
        ``accuracy``, ``balanced_accuracy`` and ``auroc``; None where a measure cannot be computed. All are None of
        several cases of one patient: nobody knows how another differs. A case whose probabilities are not finite is
        wrong, and has no rank: there is no AUC then.
    """
    every = np.ones(new.shape[1], dtype=bool) if counting is None else counting
    area = None
    if len(labels) and not of_one_patient(whose) and all(np.isfinite(p).all() for p in (new, old)):
        positive = labels == np.arange(new.shape[1])[:, None]
        area = auroc_gain(*(as_log_odds(p)[:, every] for p in (new, old)), positive[every], whose=whose)
    found = share_differences(correct(new, labels), correct(old, labels), labels, whose)
    if not every.all():
        found["balanced_accuracy"] = None
    return {**found, "auroc": area}


def share_differences(
    right: np.ndarray, was_right: np.ndarray, labels: np.ndarray, whose: np.ndarray | None
) -> dict[str, Difference | None]:
    """``accuracy`` and ``balanced_accuracy`` of :func:`differences`, from which cases either model has right, (n,)."""
    if not len(labels) or of_one_patient(whose):
        return dict.fromkeys(("accuracy", "balanced_accuracy"))
    change = right.astype(float) - was_right
    number = independent(whose, len(change))
    middle, variance = _variance(change)
    errors = ((change - change.mean()) / len(change))[None]
    of_patients = between_patients(errors, np.ones_like(errors, dtype=bool), whose)
    variance = widest(max(variance, _of_one_more(change, whose)), of_patients, whose)
    return {
        "accuracy": _interval(float(change.mean()), middle, float(np.sqrt(variance)), number),
        "balanced_accuracy": _mean_over_classes(change, labels, whose, number),
    }


def _mean_over_classes(change: np.ndarray, labels: np.ndarray, whose: np.ndarray | None, cases: int) -> Difference:
    """Of the classes' mean changes. A class whose cases are all one patient's tells as much as one case would.

    The case of each sign that the accuracy's centre counts is shared out to the classes: of a single class the interval
    is the accuracy's. Without it a rare class' only case shows a difference more often than once in 20 times.
    """
    found, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.bincount(which, weights=change) / sizes
    patients = sizes if whose is None else np.array([len(np.unique(whose[which == c])) for c in range(len(found))])
    members = which == np.arange(len(found))[:, None]
    variances = np.array([_of_class(change[own], None if whose is None else whose[own]) for own in members])
    errors = np.where(members, (change - means[which]) / sizes[which], 0.0)
    several = widest(variances[patients > 1].sum(), between_patients(errors, members, whose), whose)
    deviation = np.sqrt(several + variances[patients == 1].sum()) / len(found)
    told = np.where(patients == 1, 1, sizes)
    middle = means * told / (told + 2 / len(found))
    return _interval(float(means.mean()), float(middle.mean()), float(deviation), cases)


def _variance(change: np.ndarray, cases: int | None = None) -> tuple[float, float]:
    """Centre and variance of a mean of values -1, 0 and 1, one case of each sign added (Bonett and Price, eq. 10).

    Args:
        change: (n,).
        cases: as how many they count; by default all.
    """
    m = len(change) if cases is None else cases
    n = m + 2
    better, worse = ((change > 0).mean() * m + 1) / n, ((change < 0).mean() * m + 1) / n
    return float(better - worse), float((better + worse - (better - worse) ** 2) / n)


def _of_class(change: np.ndarray, whose: np.ndarray | None) -> float:
    """Variance of a class's mean change if its cases were independent; of a single patient's that of one case."""
    if len(change) == 1 or of_one_patient(whose):
        return _variance(change, 1)[1]
    return max(_variance(change)[1], _of_one_more(change, whose))


def _of_one_more(change: np.ndarray, whose: np.ndarray | None) -> float:
    """Variance of a mean change if one more patient of each sign changed in as many of its cases as those who change.

    In all of them where nobody does: that no patient of ten differs does not show that none of a hundred would, however
    many cases the ten have.

    Args:
        change: (n,), -1, 0 and 1.
        whose: see :func:`differences`; without it 0.
    """
    if whose is None:
        return 0.0
    changed, cases = by_patient(np.stack([change != 0, np.ones(len(change))]), whose)
    shares = (changed / cases)[changed > 0]
    return 2 * float(shares.mean() if len(shares) else 1.0) ** 2 / (len(cases) + 2) ** 2


def _interval(estimate: float, middle: float, deviation: float, cases: int) -> Difference:
    """Of few cases, or patients, it contains 0: five that all change alike do so by chance once in sixteen times."""
    low, high = middle - Z95 * deviation, middle + Z95 * deviation
    if cases < LEAST_PATIENTS:
        low, high = min(low, 0.0), max(high, 0.0)
    return {
        "difference": estimate,
        "low": max(-1.0, min(low, estimate)),
        "high": min(1.0, max(high, estimate)),
    }


def auroc_gain(
    new: np.ndarray,
    old: np.ndarray,
    positive: np.ndarray,
    known: np.ndarray | None = None,
    whose: np.ndarray | None = None,
) -> Difference | None:
    """Of mean AUCs, over the classes that have both positives and negatives; None where there is none.

    None also where all cases are one patient's, and where two models' scores differ and no case is ranked otherwise:
    nothing is known of the difference's spread then.

    Args:
        new: scores (n, classes).
        old: scores (n, classes).
        positive: (classes, n) bool.
        known: see :func:`medpfl.tasks.auc.macro_auc`.
        whose: likewise.
    """
    used = np.flatnonzero(np.minimum(*counts(positive, known)))
    if not len(used) or of_one_patient(whose):
        return None
    there = None if known is None else known[used]
    gained, error = paired_auc(new[:, used].T, old[:, used].T, positive[used], there, whose)
    if error <= ALIKE and not np.array_equal(new[:, used], old[:, used]):
        return None
    some = np.ones(len(new), dtype=bool) if there is None else there.any(0)
    return _interval(gained, gained, error, independent(None if whose is None else whose[some], int(some.sum())))


def counted(gains: Mapping[str, Mapping[str, Any] | None], measure: str) -> dict[str, int]:
    """How many sites gain, lose, and neither.

    Args:
        gains: by site, :func:`differences`.
        measure: by which one.
    """
    found = [verdict(of[measure]) for of in gains.values() if of]
    return {word: found.count(word) for word in ("gains", "no difference found", "loses")}
