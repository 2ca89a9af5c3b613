"""The measures of :mod:`medpfl.tasks.further` for several labels a case, each there, not there, or not known.

Means over the labels that some of the known cases have (and, where those without are needed, others have not); Brier
score and calibration error are over all known labels together.
"""

from __future__ import annotations

import numpy as np

from medpfl.tasks.further import BINS, Values, average_precision, bins_of, curve, over, sums, youden


def label_thresholds(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each label the least probability that counts as there, (labels,), by :func:`~medpfl.tasks.further.youden`.

    NaN for a label that no known case has, or that all have.

    Args:
        probabilities: (n, labels), of validation data.
        labels: (n, labels): 1, 0, or -1 where it is not known.
    """
    known = labels >= 0
    found = [youden(p[k], y[k] == 1) for p, y, k in zip(probabilities.T, labels.T, known.T, strict=True)]
    return np.array(found)


def further_of_labels(probabilities: np.ndarray, labels: np.ndarray, cuts: np.ndarray, weights: np.ndarray) -> Values:
    """The measures under each row of weights, (rows,); NaN where one is not defined.

    Args:
        probabilities: (n, labels), finite.
        labels: (n, labels): 1, 0, or -1 where it is not known.
        cuts: :func:`label_thresholds` of validation data.
        weights: (rows, n).
    """
    known, true = labels >= 0, labels == 1
    weights = weights.astype(np.float32)  # whole numbers, of which sums stay exact
    there = np.flatnonzero(true.any(0)).tolist()
    called, guessed = probabilities >= cuts, (probabilities > 0.5) & known
    with np.errstate(invalid="ignore", divide="ignore"):
        positives, negatives = sums(weights, true), sums(weights, known & ~true)
        sensitivity = sums(weights, called & true) / positives
        specificity = sums(weights, ~called & known & ~true) / negatives
        sensitivity[:, np.isnan(cuts)] = specificity[:, np.isnan(cuts)] = np.nan
        f1 = 2 * sums(weights, guessed & true) / (sums(weights, guessed) + positives)
        precision = np.full_like(positives, np.nan)
        for j in there:
            seen = known[:, j]
            precision[:, j] = average_precision(probabilities[seen, j], true[seen, j], weights[:, seen])
        total = sums(weights, known).sum(1)
        return {
            "sensitivity": over(sensitivity, there),
            "specificity": over(specificity, there),
            "f1": over(f1, there),
            "average_precision": over(precision, there),
            "brier": weights @ (np.square(probabilities - true) * known).sum(1) / total,
            "ece": _calibration_error(probabilities, true, known, weights) / total,
        }


def label_reliability(probabilities: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    """:func:`~medpfl.tasks.further.reliability` of all known labels: whether each is there, and how sure that is."""
    known = labels >= 0
    confidence, right = _confidence(probabilities, labels == 1)
    return curve(confidence[known], right[known])


def _confidence(probabilities: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the more probable of the two answers, and whether it is right, each (n, labels)."""
    return np.maximum(probabilities, 1 - probabilities), (probabilities > 0.5) == true


def _calibration_error(
    probabilities: np.ndarray, true: np.ndarray, known: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Summed over the bins, (rows,); what each case adds to a bin is summed before it is weighed."""
    confidence, right = _confidence(probabilities, true)
    off, where = (right - confidence) * known, bins_of(confidence)
    in_bins = np.stack([(off * (where == b)).sum(1) for b in range(BINS)], 1)
    return np.abs(weights @ in_bins).sum(1)
