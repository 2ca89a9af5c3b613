"""95 % intervals over cases, or over patients where some have several of them.

``whose`` is everywhere the number of the patient that each case is of, (n,); None where each is of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, stdtrit

from medpfl.core.gain import LEAST_PATIENTS

Z95 = 1.959963984540054
ALIKE = 1e-9
"""How far values may be apart that are the same but for rounding, as a share of them where they have a unit."""


def by_patient(values: np.ndarray, whose: np.ndarray | None) -> np.ndarray:
    """Sums over each patient's cases, (..., n) to (..., patients)."""
    if whose is None:
        return values
    number = np.unique(whose, return_inverse=True)[1]
    sums = np.zeros((*values.shape[:-1], int(number.max(initial=-1)) + 1))
    np.add.at(sums, (..., number), values)
    return sums


def patient_means(whose: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """From values of cases, (n,), to the means over each patient's, (patients,); whose they are is looked up once."""
    if whose is None:
        return lambda values: values
    number = np.unique(whose, return_inverse=True)[1]
    counts = np.bincount(number)
    return lambda values: np.bincount(number, values) / counts


def independent(whose: np.ndarray | None, cases: int) -> int:
    """How many patients cases are of; of as many as cases where that is not known."""
    return cases if whose is None else len(np.unique(whose))


def of_one_patient(whose: np.ndarray | None) -> bool:
    """Whether all cases are known to be one patient's."""
    return whose is not None and len(np.unique(whose)) == 1


def between_patients(errors: np.ndarray, members: np.ndarray, whose: np.ndarray | None) -> tuple[float, float]:
    """Variance of an estimate, and its degrees of freedom: patients are independent, their cases are not.

    The estimate is a sum of means, each over a group of cases. Its variance is the bias-reduced one of clusters (CR2 of
    Bell and McCaffrey, Survey Methodology 28, 2002): a patient who has much of a group draws its mean, and the
    residuals are too small by that. The degrees of freedom are Satterthwaite's, as there if cases are independent, or
    if a patient's are all alike, whichever are fewer: near 1 where one patient has most cases, K - 1 where K patients
    have as many each.

    Args:
        errors: (groups, n), a case's difference from its group's mean as the estimate weighs it; 0 where it is none of
            the group's.
        members: (groups, n), how much each case is of it, as a rule 0 or 1. A group of a single patient adds nothing.
        whose: see above.

    Returns:
        0 and 1 where no group has two patients.
    """
    counts = by_patient(members.astype(float), whose)
    some = (counts > 0).sum(1) > 1
    if not some.any():
        return 0.0, 1.0
    counts, sums = counts[some], by_patient(errors[some], whose)
    shares = counts / counts.sum(1, keepdims=True)
    larger = 1 / np.sqrt(1 - shares)
    return float(np.square((larger * sums).sum(0)).sum()), min(_degrees(larger * shares, counts, r) for r in (0, 1))


def _degrees(b: np.ndarray, n: np.ndarray, alike: float) -> float:
    """tr(S)^2 / tr(S S) of the covariance S of the patients' terms, as a patient's cases are alike from 0 to 1.

    Of a group of N cases, with p = n / N, S is diag(b^2 (r + (1 - r) / n)) - r (b (bp)' + (bp) b') + (r |p|^2 -
    (1 - r) / N) b b', with r for how alike they are; groups add up.

    Args:
        b: a patient's share of a group's cases, as the variance weighs it, (groups, patients).
        n: how many cases it has of it, likewise.
        alike: r.
    """
    total = n.sum(1)
    p = n / total[:, None]
    diagonal = (np.square(b) * (alike + (1 - alike) / np.maximum(n, 1))).sum(0)
    half, cross = np.concatenate([b, b * p]), -alike * np.eye(len(b))
    core = np.block([[np.diag(alike * np.square(p).sum(1) - (1 - alike) / total), cross], [cross, 0 * cross]])
    rest = ((core @ half) * half).sum(0)
    product = core @ (half @ half.T)
    squared = np.square(diagonal).sum() + 2 * diagonal @ rest + (product * product.T).sum()
    return max(1.0, float((diagonal + rest).sum() ** 2 / squared))


def degrees_of_cases(members: np.ndarray) -> float:
    """The degrees of freedom of :func:`between_patients` where each case is a patient of its own, in closed form.

    With the numbers N of two groups' cases and c of those that are in both, tr(S) is the sum of 1 / N over groups, and
    tr(S S) that of (c (1 - 1/N - 1/N') + c^2 / (N N')) / (N (N - 1) N' (N' - 1)) over pairs of them.

    Args:
        members: (groups, n) bool; groups of a single case add nothing.

    Returns:
        1 where no group has two cases.
    """
    sizes = members.sum(1)
    several = members[sizes > 1].astype(np.float32)  # counts to 2^24 are exact
    if not len(several):
        return 1.0
    one = 1 / sizes[sizes > 1]
    weight = one / (sizes[sizes > 1] - 1)
    both = (several @ several.T).astype(np.float64)
    squared = both * (1 - one - one[:, None]) + np.square(both) * one * one[:, None]
    return max(1.0, float(one.sum() ** 2 / (weight @ squared @ weight)))


def as_known(variance: float, degrees: float) -> float:
    """The variance of which 1.96 deviations reach as far as Student's quantile of its own degrees of freedom does."""
    return variance * (float(stdtrit(degrees, 0.975)) / Z95) ** 2


def widest(by_case: float, of_patients: tuple[float, float], whose: np.ndarray | None) -> float:
    """The variance of which 1.96 deviations are 95 %: by case or by patient, whichever reaches further.

    A variance between patients is known as well as Student's t of its degrees of freedom says: of three patients with
    as many cases it is 4.30 deviations.

    Args:
        by_case: variance of an estimate if cases were independent.
        of_patients: the same if patients are, with its degrees of freedom (:func:`between_patients`).
        whose: see above.
    """
    if whose is None or len(np.unique(whose)) < 2:
        return float(by_case)
    return max(float(by_case), as_known(*of_patients))


def mean_interval(
    values: np.ndarray, whose: np.ndarray | None = None, weights: np.ndarray | None = None
) -> list[float] | None:
    """Student's interval of the mean of values (n,), [low, high]; None for fewer than two patients.

    With weights (n,), of the sum of the values by the sum of these: a value may be a sum over several things.
    """
    patients = independent(whose, len(values))
    if patients < 2:
        return None
    each = np.ones(len(values)) if weights is None else weights
    middle = float(values.sum() / each.sum())
    variance, degrees = between_patients(((values - middle * each) / each.sum())[None], each[None], whose)
    half = float(stdtrit(degrees, 0.975) * np.sqrt(variance))
    return [middle - half, middle + half]


def mean_gain(
    differences: np.ndarray, whose: np.ndarray | None = None, weights: np.ndarray | None = None
) -> dict[str, float] | None:
    """What a mean is better by, from each case's difference: ``difference``, and Student's ``low`` and ``high``.

    None for fewer than two patients; and where all cases differ alike, but not by 0: of two cases that are each a grade
    better nobody knows how far the next one is.

    Args:
        differences: (n,).
        whose: see above.
        weights: see :func:`mean_interval`.
    """
    ends = mean_interval(differences, whose, weights)
    if ends is None:
        return None
    middle = (ends[0] + ends[1]) / 2
    if middle and ends[1] - ends[0] <= ALIKE * abs(middle):
        return None
    return {"difference": middle, "low": ends[0], "high": ends[1]}


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float], n: int, whose: np.ndarray | None, *, draws: int = 1000
) -> list[float] | None:
    """Interval of a statistic of patients drawn with replacement, each with all cases, [low, high].

    The same cases get the same interval: they are drawn from a fixed seed. See :func:`drawn_interval`.

    Args:
        statistic: of the chosen cases' numbers (n,).
        n: how many cases there are.
        whose: see above.
        draws: of the bootstrap.
    """
    rng = np.random.default_rng(0)
    rows, patients = _rows(whose), independent(whose, n)
    found = [statistic(rows(rng.integers(patients, size=patients))) for _ in range(draws)]
    return drawn_interval(np.array(found), draws, patients, statistic(np.arange(n)))


def drawn_interval(found: np.ndarray, draws: int, patients: int, estimate: float) -> list[float] | None:
    """A bootstrap's expanded percentile interval, [low, high]; None where it would promise too much.

    Percentiles further out than 2.5 and 97.5, by what Student's t and the missing n / (n - 1) would add to a mean's
    interval (Hesterberg, The American Statistician 69, 2015). It reaches to the estimate, which lies beside the draws
    of a statistic that grows with noise, as calibration errors do. None of fewer than :data:`LEAST_PATIENTS`, or where
    the statistic is known of less than half of the draws.

    Args:
        found: (known,), the statistic of the draws of which it is known.
        draws: how many were made.
        patients: how many are drawn from.
        estimate: of all cases.
    """
    if patients < LEAST_PATIENTS or len(found) <= draws / 2:
        return None
    tail = 100 * float(ndtr(-stdtrit(patients - 1, 0.975) * np.sqrt(patients / (patients - 1))))
    low, high = np.percentile(found, (tail, 100 - tail))
    return [float(min(low, estimate)), float(max(high, estimate))]


def _rows(whose: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """From patients to the cases that are theirs."""
    if whose is None:
        return lambda patients: patients
    number = np.unique(whose, return_inverse=True)[1]
    own = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    return lambda patients: np.concatenate([own[patient] for patient in patients])
