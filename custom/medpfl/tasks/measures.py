"""How good predictions are: accuracy, balanced accuracy, macro one-vs-rest AUC with its interval; over sites, too.

The AUC is the Mann-Whitney statistic on midranks (ties count half). Its 95 % interval is DeLong's (DeLong, DeLong and
Clarke-Pearson, Biometrics 44, 1988), carried over to the mean over classes, on the logit scale. A value that cannot be
computed is None, never NaN and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

_Z95 = 1.959963984540054


def measures(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The measures of one site's predictions.

    A sample whose probabilities are not all finite counts as wrong, and leaves the AUC undefined.

    Args:
        probabilities: (n, classes); the class with the highest one is the prediction (the first of equals).
        labels: (n,) whole numbers in [0, classes).

    Returns:
        ``n``; ``accuracy``; ``balanced_accuracy``: mean recall over the classes present; ``auroc``: mean over the
        classes that have both positives and negatives; ``auroc_ci95``: [low, high]; ``auroc_classes``: their number.

    Raises:
        ValueError: shapes that do not fit, or a label outside the classes.
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            f"expected probabilities (n, classes) and labels (n,), got {probabilities.shape}, {labels.shape}"
        )
    n, classes = probabilities.shape
    if n and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"labels must lie in [0, {classes}), got {labels.min()} to {labels.max()}")
    if n == 0:
        return {
            "n": 0,
            "accuracy": None,
            "balanced_accuracy": None,
            "auroc": None,
            "auroc_ci95": None,
            "auroc_classes": 0,
        }
    finite = np.isfinite(probabilities).all(1)
    right = (probabilities.argmax(1) == labels) & finite
    counts = np.bincount(labels, minlength=classes)
    recalls = np.bincount(labels, weights=right, minlength=classes)[counts > 0] / counts[counts > 0]
    used = np.flatnonzero((counts > 0) & (counts < n)) if finite.all() else np.empty(0, dtype=int)
    area, interval = _macro_auc(probabilities[:, used].T, labels == used[:, None]) if len(used) else (None, None)
    return {
        "n": n,
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(recalls.mean()),
        "auroc": area,
        "auroc_ci95": interval,
        "auroc_classes": len(used),
    }


def summary(per_site: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Mean, worst (lowest) and sample standard deviation over sites of each of some measures.

    Sites where a measure is None are left out of it; a deviation needs two sites.

    Args:
        per_site: :func:`measures` by site name.

    Returns:
        By measure, under ``mean``, ``worst`` and ``std``: the value or None; under ``worst_site``: the name of the site
        (the first of equals) or None; under ``counted``: how many sites counted.
    """
    found: dict[str, dict[str, Any]] = {key: {} for key in ("mean", "worst", "std", "worst_site", "counted")}
    for measure in names:
        values = {name: site[measure] for name, site in per_site.items() if site[measure] is not None}
        worst = min(values, key=values.__getitem__, default=None)
        spread = list(values.values())
        found["mean"][measure] = float(np.mean(spread)) if values else None
        found["worst"][measure] = None if worst is None else values[worst]
        found["std"][measure] = float(np.std(spread, ddof=1)) if len(values) > 1 else None
        found["worst_site"][measure] = worst
        found["counted"][measure] = len(values)
    return found


def _macro_auc(scores: np.ndarray, positive: np.ndarray) -> tuple[float, list[float]]:
    """Mean of the classes' AUCs and its 95 % interval.

    Every sample contributes to each class's AUC through its structural component (DeLong et al., eq. 4 and 5). The
    variance of the mean over classes is the sum over samples of the squared sum of their components over classes, so
    that the covariance between the classes counts; with one class, or two that mirror each other, it is DeLong's.

    A class with a single positive or a single negative, or with components that do not vary (a perfect ranking), tells
    nothing about its own variance. There Hanley and McNeil's (Radiology 143, 1982) is used, at an AUC kept
    1 / (2 sqrt(positives * negatives)) away from 0 and 1; these classes count as fully correlated with each other,
    which is the cautious end. The interval always contains the estimate.

    Args:
        scores: (classes, n), finite.
        positive: (classes, n) bool, each row with both values.
    """
    m, k = positive.sum(1), (~positive).sum(1)
    above_negatives, below_positives = structural_components(scores, positive, m, k)
    area = np.where(positive, above_negatives, 0.0).sum(1) / m
    with np.errstate(divide="ignore"):
        positive_weight = np.where(m > 1, 1 / np.sqrt(m * (m - 1)), 0.0)
        negative_weight = np.where(k > 1, 1 / np.sqrt(k * (k - 1)), 0.0)
    components = np.where(positive, above_negatives, below_positives) - area[:, None]
    components *= np.where(positive, positive_weight[:, None], negative_weight[:, None])

    silent = (m == 1) | (k == 1) | (np.square(components).sum(1) < 1e-20)
    margin = 1 / (2 * np.sqrt(m * k))
    centre = np.where(silent, np.clip(area, margin, 1 - margin), area)
    variance = np.square(components[~silent].sum(0)).sum()
    variance += np.sqrt(hanley_mcneil(centre, m, k)[silent]).sum() ** 2

    estimate, middle = float(area.mean()), centre.mean()
    half = _Z95 * np.sqrt(variance) / len(m) / (middle * (1 - middle))
    low, high = expit(logit(middle) - half), expit(logit(middle) + half)
    return estimate, [min(float(low), estimate), max(float(high), estimate)]


def structural_components(
    scores: np.ndarray, positive: np.ndarray, m: np.ndarray, k: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For positives the share of negatives below them, for negatives the share of positives above them, ties half.

    From midranks (Sun and Xu, IEEE Signal Processing Letters 21, 2014). Each (classes, n), of meaning only at
    the positives and at the negatives respectively.
    """
    ranks = _midranks(scores)
    beyond = scores.shape[1] + 1  # Ranks the other kind last, so that it does not touch the ranks within one kind.
    among_positives = _midranks(np.where(positive, ranks, beyond))
    among_negatives = _midranks(np.where(positive, beyond, ranks))
    return (ranks - among_positives) / k[:, None], 1 - (ranks - among_negatives) / m[:, None]


def _midranks(rows: np.ndarray) -> np.ndarray:
    """Each value's rank in its row from 1; equal values have the mean of theirs.

    What ``scipy.stats.rankdata`` gives, whose import would take a quarter of a site's start.
    """

    def of_row(row: np.ndarray) -> np.ndarray:
        _, which, counts = np.unique(row, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[which]

    return np.stack([of_row(row) for row in rows])


def hanley_mcneil(area: np.ndarray, m: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Variance of an AUC from m positives and k negatives under exponential scores."""
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    return (area * (1 - area) + (m - 1) * (q1 - area**2) + (k - 1) * (q2 - area**2)) / (m * k)
