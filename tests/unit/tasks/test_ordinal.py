"""Grades: quadratic kappa and the mean error, by hand and as scikit-learn has them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from medpfl.core.gain import verdict
from medpfl.tasks import TASKS
from medpfl.tasks.evaluation import Cases
from medpfl.tasks.ordinal import quadratic_kappa

TASK = TASKS["ordinal"]


@settings(max_examples=40)
@given(st.integers(4, 60), st.integers(2, 6), st.integers(0, 10**6))
def test_kappa_is_scikit_learns(n, classes, seed):
    rng = np.random.default_rng(seed)
    one, two = rng.integers(classes, size=(2, n))
    if len({*one, *two}) > 1:
        theirs = cohen_kappa_score(two, one, weights="quadratic", labels=range(classes))
        assert quadratic_kappa(one, two, classes) == pytest.approx(theirs)


def test_no_kappa_is_below_minus_one():
    """Rounding took these there, and what a site sent was refused."""
    labels = np.repeat(np.arange(7), [7, 9, 7, 7, 8, 13, 4])
    assert quadratic_kappa(6 - labels, labels, 7) == -1


@settings(max_examples=40)
@given(st.integers(2, 60), st.integers(2, 6), st.integers(0, 10**6))
def test_of_one_grade_throughout_kappa_is_nothing_to_the_bit(n, classes, seed):
    labels = np.random.default_rng(seed).integers(classes, size=n)
    grade = (labels[0] + 1) % classes
    assert quadratic_kappa(np.full(n, grade), labels, classes) == 0


def test_by_hand():
    labels = np.array([0, 1, 2, 4])
    probabilities = np.eye(5)[[0, 2, 2, 1]]
    found = TASK.measured((probabilities, labels))
    assert found["mae"] == 1.0
    assert found["accuracy"] == 0.5
    assert TASK.value(found, "mae") == -1.0  # rounds are selected by the least error
    same = TASK.measured((np.eye(5)[[3, 3]], np.array([3, 3])))
    assert same["kappa"] is None


def test_what_is_gained_is_above_0_where_the_error_is_less():
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=60)
    good, bad = np.eye(5)[labels], np.eye(5)[np.clip(labels + rng.integers(-2, 3, size=60), 0, 4)]
    found = TASK.gained((good, labels), (bad, labels))
    assert all(found[name]["difference"] > 0 and found[name]["low"] > 0 for name in ("kappa", "mae", "accuracy"))
    assert TASK.gained((good, labels), (bad, labels)) == found


@pytest.mark.parametrize("n", [6, 20])
def test_the_one_case_of_a_rare_grade_decides_nothing(n):
    labels = (np.arange(n) == 0).astype(int)
    right, constant = np.eye(2)[labels], np.eye(2)[np.zeros(n, dtype=int)]
    found = TASK.gained((right, labels), (constant, labels))["kappa"]
    assert found == {"difference": 1, "low": 0, "high": 1}
    assert verdict(found) == "no difference found"


def test_copies_of_a_patients_cases_tell_nothing_new():
    rng, labels = np.random.default_rng(2), np.arange(24) % 4
    new, old = (np.eye(4)[np.clip(labels + rng.integers(-1, far, 24), 0, 3)] for far in (2, 3))
    once = TASK.gained((new, labels), (old, labels))
    four = [(np.repeat(p, 4, axis=0), np.repeat(labels, 4)) for p in (new, old)]
    again = TASK.gained(*four, Cases("patient", np.repeat(np.arange(24), 4)))
    for name in ("kappa", "mae"):
        assert once[name]["low"] < once[name]["high"] and again[name] == pytest.approx(once[name])


def test_kappas_that_differ_alike_in_all_draws_tell_nothing_of_their_spread():
    labels = np.arange(40) % 2
    right, constant = np.eye(2)[labels], np.eye(2)[np.zeros(40, dtype=int)]
    assert TASK.gained((right, labels), (constant, labels))["kappa"] is None
    assert TASK.gained((right, labels), (right, labels))["kappa"] == {"difference": 0, "low": 0, "high": 0}


def test_what_is_not_finite_is_as_wrong_as_can_be():
    found = TASK.measured((np.full((2, 5), np.nan), np.array([0, 4])))
    assert (found["mae"], found["accuracy"]) == (4.0, 0.0)
    of_four = TASK.measured((np.full((4, 4), np.nan), np.arange(4)))
    assert of_four["mae"] == (3 + 2 + 2 + 3) / 4
