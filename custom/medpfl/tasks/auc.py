"""The area under the ROC curve, mean over classes, with its interval; and what one model's is above another's.

It is the Mann-Whitney statistic on midranks (ties count half). The 95 % interval is DeLong's (DeLong, DeLong and
Clarke-Pearson, Biometrics 44, 1988), carried over to the mean over classes, on the logit scale. Of a class with few
positives (or negatives) their own variance is hardly known, so that the deviations are Student's: of two positives
beside many negatives 12.7 and not 1.96, of three 4.3, of thirty 2.05.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from medpfl.core.ranks import midranks
from medpfl.tasks.intervals import (
    Z95,
    as_known,
    between_patients,
    by_patient,
    degrees_of_cases,
    of_one_patient,
    widest,
)

_TINIEST, _NEAR = 5e-324, 1e-6


def macro_auc(
    scores: np.ndarray, positive: np.ndarray, known: np.ndarray | None = None, whose: np.ndarray | None = None
) -> tuple[float, list[float], np.ndarray]:
    """Mean of the classes' AUCs, its 95 % interval, and the AUCs, (classes,).

    Every sample contributes to each class's AUC through its structural component (DeLong et al., eq. 4 and 5). The
    variance of the mean over classes is the sum over samples of the squared sum of their components over classes, so
    that the covariance between the classes counts; with one class, or two that mirror each other, it is DeLong's.

    A class with a single positive or a single negative, or those of a single patient, or with components that do not
    vary (a perfect ranking), tells nothing about its own variance. There Hanley and McNeil's (Radiology 143, 1982) is
    used, at an AUC kept 1 / (2 sqrt(positives * negatives)) away from 0 and 1, both counted in patients; these classes
    count as fully correlated with each other, which is the cautious end. The interval always contains the estimate.

    Args:
        scores: (classes, n), finite.
        positive: (classes, n) bool, each row with both values.
        known: (classes, n) bool, where it is known whether a sample is positive; by default everywhere.
        whose: (n,) which patient each sample is of, where some have several: a patient's components are summed before
            they are squared (Obuchowski, Biometrics 53, 1997; :func:`~medpfl.tasks.intervals.widest`). Of one patient
            the interval is by sample.
    """
    m, k = counts(positive, known)
    area, components = _components(scores, positive, known)
    cases = counts(positive, known, whose)
    components /= np.where(positive, m[:, None], k[:, None])

    silent = _single(*cases) | (np.square(components).sum(1) < 1e-20)
    margin = 1 / (2 * np.sqrt(np.prod(cases, axis=0)))
    centre = np.where(silent, np.clip(area, margin, 1 - margin), area)
    variance = _spread(components[~silent], positive[~silent], None if known is None else known[~silent], whose)
    variance += np.sqrt(hanley_mcneil(centre, *cases)[silent]).sum() ** 2

    estimate, middle = float(area.mean()), centre.mean()
    half = Z95 * np.sqrt(variance) / len(m) / (middle * (1 - middle))
    low, high = expit(logit(middle) - half), expit(logit(middle) + half)
    return estimate, [min(float(low), estimate), max(float(high), estimate)], area


def paired_auc(
    new: np.ndarray,
    old: np.ndarray,
    positive: np.ndarray,
    known: np.ndarray | None,
    whose: np.ndarray | None,
) -> tuple[float, float]:
    """What the mean AUC of one model is above another's on the same cases, and its standard error.

    Args:
        new: (classes, n), finite scores.
        old: the other's.
        positive: see :func:`macro_auc`.
        known: likewise.
        whose: likewise.
    """
    m, k = counts(positive, known)
    areas, parts = zip(*(_components(scores, positive, known) for scores in (new, old)), strict=True)
    cases = counts(positive, known, whose)
    change = (parts[0] - parts[1]) / np.where(positive, m[:, None], k[:, None])
    single = _single(*cases)  # one tells nothing of its own spread: as if the two models were independent
    variance = _spread(change[~single], positive[~single], None if known is None else known[~single], whose)
    kept = [np.clip(a, margin := 1 / (2 * np.sqrt(np.prod(cases, axis=0))), 1 - margin) for a in areas]
    variance += np.sqrt(sum(hanley_mcneil(a, *cases) for a in kept)[single]).sum() ** 2
    return float((areas[0] - areas[1]).mean()), float(np.sqrt(variance)) / len(m)


def as_log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Scores that rank cases as the log-odds log p - log(1 - p) of each class do, (n, classes), finite.

    That is p itself, but near 1, where float64 has no room for 1 - p, less the logarithm of the sum of the other
    classes' probabilities, which is the same down to 5e-324. Equal probabilities elsewhere stay equal.

    Args:
        probabilities: (n, classes).
    """
    others = _sums_of_others(probabilities)
    certain = (probabilities > 1 - _NEAR) & (others >= 0) & (others < 2 * _NEAR)
    return np.where(certain, 1 - np.log(np.maximum(others, _TINIEST)), probabilities)


def _sums_of_others(p: np.ndarray) -> np.ndarray:
    """From both ends: 1 - p, or the sum of all less p, would lose what is looked for."""
    none = np.zeros((len(p), 1))
    below = np.hstack([none, np.cumsum(p, axis=1)[:, :-1]])
    above = np.hstack([np.cumsum(p[:, ::-1], axis=1)[:, -2::-1], none])
    return below + above


def _spread(components: np.ndarray, positive: np.ndarray, known: np.ndarray | None, whose: np.ndarray | None) -> float:
    """Of a sum of AUCs, from what each sample adds to their error, (classes, n)."""
    m, k = counts(positive, known)
    with np.errstate(divide="ignore"):
        larger = [np.sqrt(n / (n - 1.0))[:, None] for n in (m, k)]
    by_case = float(np.square((components * np.where(positive, *larger)).sum(0)).sum())
    members = np.concatenate([positive, ~positive])
    if known is not None:
        members &= np.concatenate([known, known])
    if whose is None:
        return as_known(by_case, degrees_of_cases(members))
    errors = np.where(members, np.concatenate([components, components]), 0.0)
    return widest(by_case, between_patients(errors, members, whose), whose)


def _single(positives: np.ndarray, negatives: np.ndarray) -> np.ndarray:
    return (positives == 1) | (negatives == 1)


def counts(
    positive: np.ndarray, known: np.ndarray | None, whose: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Known positives and negatives of each class, (classes,); of more patients than one how many have some."""
    there = np.ones_like(positive) if known is None else known
    if whose is None or of_one_patient(whose):
        return (positive & there).sum(1), (~positive & there).sum(1)
    positives, negatives = (
        (by_patient(a.astype(float), whose) > 0).sum(1) for a in (positive & there, ~positive & there)
    )
    return positives, negatives


def _components(scores: np.ndarray, positive: np.ndarray, known: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """AUCs (classes,), and what each sample adds beside them (classes, n); 0 where nothing is known."""
    if known is not None:
        # Ranked last, what is unknown touches no other rank.
        scores, positive = np.where(known, scores, np.inf), positive & known
    m, k = counts(positive, known)
    above_negatives, below_positives = structural_components(scores, positive, m, k)
    area = np.where(positive, above_negatives, 0.0).sum(1) / m
    components = np.where(positive, above_negatives, below_positives) - area[:, None]
    return area, components if known is None else np.where(known, components, 0.0)


def structural_components(
    scores: np.ndarray, positive: np.ndarray, m: np.ndarray, k: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For positives the share of negatives below them, for negatives the share of positives above them, ties half.

    From midranks (Sun and Xu, IEEE Signal Processing Letters 21, 2014). Each (classes, n), of meaning only at
    the positives and at the negatives respectively.
    """
    ranks = midranks(scores)
    beyond = scores.shape[1] + 1  # Ranks the other kind last, so that it does not touch the ranks within one kind.
    among_positives = midranks(np.where(positive, ranks, beyond))
    among_negatives = midranks(np.where(positive, beyond, ranks))
    return (ranks - among_positives) / k[:, None], 1 - (ranks - among_negatives) / m[:, None]


def hanley_mcneil(area: np.ndarray, m: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Variance of an AUC from m positives and k negatives under exponential scores."""
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    return (area * (1 - area) + (m - 1) * (q1 - area**2) + (k - 1) * (q2 - area**2)) / (m * k)
