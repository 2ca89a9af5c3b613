"""What one model gains over another on the same cases: differences of measures, each with a 95 % interval.

Closed forms: the accuracy's is Bonett and Price's for paired proportions (British Journal of Mathematical and
Statistical Psychology 65, 2012), the balanced accuracy's is the same over classes, which share its two added cases, and
the AUC's is DeLong's for two correlated curves (Biometrics 44, 1988), carried over to the mean over classes. Of fewer
than six patients with several cases each no difference is found: five agree by chance once in sixteen times. The
accuracy's and the balanced accuracy's hold from ten cases on, the latter's of patients with 1 to 20 images, much alike,
in 88 to 93 %; the AUC's from some hundred where both models are near 1 (of 20 to 50 cases 86 to 90 % hold there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from medpfl.core.gain import verdict
from medpfl.tasks.auc import as_log_odds, counts, paired_auc
from medpfl.tasks.intervals import (
    ALIKE,
    LEAST_PATIENTS,
    Z95,
    by_patient,
    of_one_patient,
    variance_by_patient,
    widest,
)

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
    if not len(labels) or of_one_patient(whose):
        return dict.fromkeys(("accuracy", "balanced_accuracy", "auroc"))
    finite = [np.isfinite(p).all(1) for p in (new, old)]
    right, was_right = ((p.argmax(1) == labels) & sure for p, sure in zip((new, old), finite, strict=True))
    change = right.astype(float) - was_right
    middle, variance = _variance(change)
    variance = widest(variance, variance_by_patient((change - change.mean()) / len(change), whose), whose)
    every = np.ones(new.shape[1], dtype=bool) if counting is None else counting
    area = None
    if all(sure.all() for sure in finite):
        positive = labels == np.arange(new.shape[1])[:, None]
        area = auroc_gain(*(as_log_odds(p)[:, every] for p in (new, old)), positive[every], whose=whose)
    return {
        "accuracy": _interval(float(change.mean()), middle, float(np.sqrt(variance)), whose),
        "balanced_accuracy": _mean_over_classes(change, labels, whose) if every.all() else None,
        "auroc": area,
    }


def _mean_over_classes(change: np.ndarray, labels: np.ndarray, whose: np.ndarray | None) -> Difference:
    """Of the classes' mean changes. A class whose cases are all one patient's tells as much as one case would.

    The case of each sign that the accuracy's centre counts is shared out to the classes: of a single class the interval
    is the accuracy's. Without it a rare class' only case shows a difference more often than once in 20 times.
    """
    found, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.bincount(which, weights=change) / sizes
    patients = sizes if whose is None else np.array([len(np.unique(whose[which == c])) for c in range(len(found))])
    variances = np.array([_variance(change[which == c], 1 if n == 1 else None)[1] for c, n in enumerate(patients)])
    weights = np.sqrt(patients / np.maximum(patients - 1, 1)) / sizes
    errors = by_patient((change - means[which]) * weights[which], whose)
    several = widest(variances[patients > 1].sum(), float(np.square(errors).sum()), whose)
    deviation = np.sqrt(several + variances[patients == 1].sum()) / len(found)
    told = np.where(patients == 1, 1, sizes)
    middle = means * told / (told + 2 / len(found))
    return _interval(float(means.mean()), float(middle.mean()), float(deviation), whose)


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


def _interval(estimate: float, middle: float, deviation: float, whose: np.ndarray | None) -> Difference:
    """It contains 0 where few patients have several cases: these agree, and the patients' spread may be 0 by chance."""
    low, high = middle - Z95 * deviation, middle + Z95 * deviation
    if whose is not None and len(np.unique(whose)) < LEAST_PATIENTS:
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
    return _interval(gained, gained, error, whose)


def counted(gains: Mapping[str, Mapping[str, Any] | None], measure: str) -> dict[str, int]:
    """How many sites gain, lose, and neither.

    Args:
        gains: by site, :func:`differences`.
        measure: by which one.
    """
    found = [verdict(of[measure]) for of in gains.values() if of]
    return {word: found.count(word) for word in ("gains", "no difference found", "loses")}
