"""What accuracy and AUC do not tell of class probabilities: operating points, F1, average precision, calibration.

Each statistic is computed for all bootstrap draws at once: a draw is a weight for every case, how often it was drawn.
Cases of one patient are drawn together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from medpfl.core.gain import LEAST_PATIENTS
from medpfl.tasks.auc import as_log_odds
from medpfl.tasks.intervals import ALIKE, by_patient, drawn_interval

NAMES = ("sensitivity", "specificity", "f1", "average_precision", "brier", "ece")
BINS = 10
"""Of the confidence, of equal width."""
_DRAWS = 500
Values = dict[str, np.ndarray]


class Drawn(NamedTuple):
    """Measures of a model under bootstrap draws.

    Attributes:
        values: by measure (rows,), the first of all cases once.
        patients: how many were drawn from.
        scarce: measures without an interval (:func:`scarce`).
    """

    values: Values
    patients: int
    scarce: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: Values, n: int, owners: np.ndarray | None, scarce: frozenset[str] = frozenset()) -> Drawn:
        """Under :func:`draws` of n cases."""
        return cls(values, n if owners is None else len(np.unique(owners)), scarce)

    def numbers(self) -> dict[str, Any]:
        """The estimates by name, and ``intervals``; none where all draws agree, which says nothing of the spread."""
        found = {n: ends for n, ends in self._intervals(self.values).items() if ends[1] > ends[0] + ALIKE}
        return {**estimates(self.values), "intervals": found}

    def gains(self, old: Drawn, sign: Mapping[str, int]) -> dict[str, dict[str, float] | None]:
        """What these are better by than another model's on the same draws, with intervals.

        None of a measure that differs alike in all draws, unless the models differ in none: nothing is known of the
        spread then.

        Args:
            old: the other's.
            sign: by measure 1 where more is better, -1 where less is.
        """
        change = {name: sign[name] * (value - old.values[name]) for name, value in self.values.items()}
        same = all(np.array_equal(value, old.values[name], equal_nan=True) for name, value in self.values.items())
        ends = {n: found for n, found in self._intervals(change).items() if same or found[1] > found[0] + ALIKE}
        return {
            name: {"difference": float(v[0]), "low": ends[name][0], "high": ends[name][1]} if name in ends else None
            for name, v in change.items()
        }

    def _intervals(self, values: Values) -> dict[str, list[float]]:
        found = intervals(values, self.patients)
        return {name: ends for name, ends in found.items() if name not in self.scarce}


def thresholds(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each class the least probability that counts as positive, (classes,): where Youden's index is largest.

    (Cancer 3, 1950.) NaN for a class that these cases do not have, or that all have.

    Args:
        probabilities: (n, classes), of validation data.
        labels: (n,).
    """
    found = np.full(probabilities.shape[1], np.nan)
    for c in range(len(found)):
        found[c] = youden(probabilities[:, c], labels == c)
    return found


def youden(scores: np.ndarray, positive: np.ndarray) -> float:
    """The least score, (n,), that counts as positive where Youden's index is largest; NaN without both kinds."""
    if not positive.any() or positive.all() or not np.isfinite(scores).all():
        return float("nan")
    candidates, which = np.unique(scores, return_inverse=True)
    # From the highest down, what is called positive from each on.
    found, wrong = (
        np.bincount(which[kind], minlength=len(candidates))[::-1].cumsum()[::-1] / kind.sum()
        for kind in (positive, ~positive)
    )
    return float(candidates[(found - wrong).argmax()])


def draws(n: int, owners: np.ndarray | None = None) -> np.ndarray:
    """Weights of cases, (1 + :data:`_DRAWS`, n): all once, then as drawn with replacement from a fixed seed.

    Of too few patients there is the first row alone, and no interval.

    Args:
        n: cases.
        owners: (n,) which patient each is of; by default each is of its own.
    """
    whose = np.arange(n) if owners is None else np.unique(owners, return_inverse=True)[1]
    patients = int(whose.max()) + 1 if n else 0
    if patients < LEAST_PATIENTS:
        return np.ones((1, n))
    drawn = np.random.default_rng(0).multinomial(patients, np.full(patients, 1 / patients), _DRAWS)
    return np.vstack([np.ones((1, n)), drawn[:, whose]])


def scarce(true: np.ndarray, false: np.ndarray, cuts: np.ndarray, owners: np.ndarray | None) -> frozenset[str]:
    """Measures that are means over classes of which one has patients, but fewer than :data:`LEAST_PATIENTS`.

    No draw shows how such a class would have come out with other patients: the one case of a class is found in every
    draw, or in none.

    Args:
        true: (n, classes), whether each case is one of it; of the classes that count.
        false: (n, classes), whether it is known to be none.
        cuts: (classes,), see :func:`thresholds`.
        owners: (n,) of which patient each case is; None where each is of its own.
    """

    def few(there: np.ndarray) -> np.ndarray:
        patients = (by_patient(there.T.astype(float), owners) > 0).sum(1)
        return (patients > 0) & (patients < LEAST_PATIENTS)

    cut, with_it, without = ~np.isnan(cuts), few(true), few(false)
    found = {
        "sensitivity": (with_it & cut).any(),
        "specificity": (without & cut).any(),
        "f1": (with_it | without).any(),
        "average_precision": (with_it | without).any(),
    }
    return frozenset(name for name, so in found.items() if so)


def further(probabilities: np.ndarray, labels: np.ndarray, cuts: np.ndarray, weights: np.ndarray) -> Values:
    """The measures of :data:`NAMES` under each row of weights, (rows,); NaN where one is not defined.

    Means over the classes that the cases have; of two classes it is the second, the positive one.

    Args:
        probabilities: (n, classes), finite.
        labels: (n,).
        cuts: :func:`thresholds` of validation data.
        weights: (rows, n).
    """
    classes = probabilities.shape[1]
    true = labels[:, None] == np.arange(classes)
    weights = weights.astype(np.float32)  # whole numbers, of which sums stay exact
    counted = of_classes(true)
    called, top = probabilities >= cuts, probabilities.argmax(1)
    guessed = top[:, None] == np.arange(classes)
    with np.errstate(invalid="ignore", divide="ignore"):
        positives, total = sums(weights, true), weights.sum(1, dtype=float)
        sensitivity = sums(weights, called & true) / positives
        specificity = sums(weights, ~called & ~true) / (total[:, None] - positives)
        f1 = 2 * sums(weights, guessed & true) / (sums(weights, guessed) + positives)
        ranked = as_log_odds(probabilities)  # of confident ones probabilities are all 1
        precision = [average_precision(ranked[:, c], true[:, c], weights) for c in counted]
        unknown = np.isnan(cuts)
        sensitivity[:, unknown] = specificity[:, unknown] = np.nan
        return {
            "sensitivity": over(sensitivity, counted),
            "specificity": over(specificity, counted),
            "f1": over(f1, counted),
            "average_precision": over(np.stack(precision, 1), range(len(counted))) if counted else _none(weights),
            "brier": weights @ np.square(probabilities - true).sum(1) / total,
            "ece": calibration_error(probabilities, labels, weights),
        }


def of_classes(true: np.ndarray) -> list[int]:
    """Which classes a mean over classes is of, from which each case is of, (n, classes)."""
    return [1] if true.shape[1] == 2 else np.flatnonzero(true.any(0)).tolist()


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Expected calibration error (Guo et al., ICML 2017) of the predicted class under each row of weights, (rows,)."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    inside = bins_of(confidence)[:, None] == np.arange(BINS)
    return np.abs(weights @ (inside * (right - confidence)[:, None])).sum(1) / weights.sum(1)


def bins_of(confidence: np.ndarray) -> np.ndarray:
    """In which of the bins each confidence lies, (n,)."""
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    """The reliability curve: of each bin of confidence that has cases its ``n``, mean ``confidence``, ``accuracy``."""
    return curve(probabilities.max(1), probabilities.argmax(1) == labels)


def curve(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, float]]:
    """See :func:`reliability`: of the confidence of predictions, (n,), and whether each is right."""
    where = bins_of(confidence)
    return [
        {"n": int(there.sum()), "confidence": float(confidence[there].mean()), "accuracy": float(right[there].mean())}
        for there in (where == b for b in range(BINS))
        if there.any()
    ]


def estimates(values: Values) -> dict[str, float | None]:
    """Without any draw."""
    return {name: None if np.isnan(v[0]) else float(v[0]) for name, v in values.items()}


def intervals(values: Mapping[str, np.ndarray], patients: int) -> dict[str, list[float]]:
    """95 % intervals over the draws from so many patients, of the measures that are known in most of them."""
    known = {name: v[1:][np.isfinite(v[1:])] for name, v in values.items() if np.isfinite(v[0])}
    found = {name: drawn_interval(v, _DRAWS, patients, values[name][0]) for name, v in known.items()}
    return {name: ends for name, ends in found.items() if ends}


def sums(weights: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Of the weights of the cases that are in each group, (rows, groups)."""
    return (weights @ there.astype(np.float32)).astype(float)


def average_precision(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean over the positive cases of the precision at each one's score, (rows,)."""
    order = np.argsort(-scores, kind="stable")
    falling, there = -scores[order], np.flatnonzero(positive[order])
    last = np.searchsorted(falling, falling[there], side="right") - 1  # of the cases with its score
    w = weights[:, order]
    own = w[:, there]
    hit = own.cumsum(1)[:, np.searchsorted(there, last, side="right") - 1]
    precision = hit / w.cumsum(1)[:, last].astype(float)
    return (own * np.where(own > 0, precision, 0)).sum(1) / own.sum(1, dtype=float)


def over(values: np.ndarray, classes: list[int] | range) -> np.ndarray:
    """Mean over the classes that have one, (rows,)."""
    chosen = values[:, list(classes)]
    known = np.isfinite(chosen)
    return np.where(known, chosen, 0).sum(1) / np.where(known.any(1), known.sum(1), np.nan)


def _none(weights: np.ndarray) -> np.ndarray:
    return np.full(len(weights), np.nan)
