"""Operating points, F1, average precision and calibration, by hand and as scikit-learn has them; the bootstrap."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, roc_curve

from medpfl.tasks import TASKS
from medpfl.tasks.further import (
    NAMES,
    Drawn,
    draws,
    estimates,
    further,
    intervals,
    reliability,
    scarce,
    thresholds,
    youden,
)

TASK = TASKS["classification"]
NO_CUTS = {"sensitivity": None, "specificity": None}
SIGNS = {"sensitivity": 1, "specificity": 1, "f1": 1, "average_precision": 1, "brier": -1, "ece": -1}
HALF = np.array([0.5, 0.5])


def of_positives(scores):
    scores = np.asarray(scores, dtype=float)
    return np.stack([1 - scores, scores], 1)


def test_the_threshold_is_chosen_on_validation_data():
    """Validation: called from 0.3 on, both positives and one of two negatives; from 0.6 on one and none: both 0.5."""
    labels = np.array([1, 1, 0, 0])
    assert thresholds(of_positives([0.6, 0.4, 0.3, 0.1]), labels)[1] == 0.4
    test = further(of_positives([0.5, 0.35, 0.45, 0.2]), labels, np.array([np.nan, 0.4]), np.ones((1, 4)))
    found = estimates(test)
    assert (found["sensitivity"], found["specificity"]) == (0.5, 0.5)
    assert np.isnan(thresholds(of_positives([0.2, 0.3]), np.array([0, 0]))).all()
    without = estimates(further(of_positives([0.5, 0.3]), np.array([1, 0]), np.full(2, np.nan), np.ones((1, 2))))
    assert without["sensitivity"] is None
    assert without["f1"] == 0  # 0.5 to 0.5 is the first class


def test_a_task_takes_no_threshold_from_test_data():
    """The same cases: thresholds of their own would be 0.35, by which both positives are found."""
    labels, test = np.array([1, 1, 0, 0]), of_positives([0.5, 0.35, 0.45, 0.2])
    validation = of_positives([0.6, 0.4, 0.3, 0.1])
    found = TASK.further((test, labels), (validation, labels), None).numbers()
    assert (found["sensitivity"], found["specificity"]) == (0.5, 0.5)
    one = labels[:, None]
    found = TASKS["multi-label"].further((test[:, 1:], one), (validation[:, 1:], one), None).numbers()
    assert (found["sensitivity"], found["specificity"]) == (0.5, 0.5)


def test_copies_of_a_patients_cases_narrow_no_interval():
    rng, labels = np.random.default_rng(0), np.arange(30) % 3
    scores = rng.dirichlet(np.ones(3), size=30) + np.eye(3)[labels] / 3
    once = scores / scores.sum(1, keepdims=True), labels
    four = tuple(np.repeat(values, 4, axis=0) for values in once)
    alone = TASK.further(once, once, None).numbers()["intervals"]
    again = TASK.further(four, once, np.repeat(np.arange(30), 4)).numbers()["intervals"]
    assert set(again) == set(alone) == set(NAMES) - {"sensitivity"}  # which is 1 in every draw
    assert all(again[name] == pytest.approx(ends) for name, ends in alone.items())


def test_of_equal_thresholds_the_least_is_taken():
    """From 0.3 on both positives and one of two negatives are called, from 0.9 on one and none: 1/2 each."""
    assert youden(np.array([0.9, 0.3, 0.5, 0.1]), np.array([True, True, False, False])) == 0.3


def test_many_validation_cases_take_little_memory():
    rng = np.random.default_rng(0)
    scores, positive = rng.random(8000), rng.random(8000) < 0.3
    tracemalloc.start()
    cut = youden(scores, positive)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    fpr, tpr, thresholds_ = roc_curve(positive, scores, drop_intermediate=False)
    assert cut == thresholds_[1:][::-1][(tpr - fpr)[1:][::-1].argmax()] and most < 2**22


@settings(max_examples=40)
@given(st.integers(5, 60), st.integers(0, 10**6))
def test_they_are_scikit_learns_under_any_weights(n, seed):
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(2, size=n), rng.random(n).round(1)
    labels[:2] = 0, 1
    weights = np.vstack([np.ones(n), rng.integers(0, 3, n)])
    weights[:, :2] = 1
    found = further(of_positives(scores), labels, HALF, weights)
    for row, w in enumerate(weights):
        expected = average_precision_score(labels, scores, sample_weight=w)
        assert found["average_precision"][row] == pytest.approx(expected)
        assert found["brier"][row] / 2 == pytest.approx(brier_score_loss(labels, scores, sample_weight=w))
        assert found["f1"][row] == pytest.approx(f1_score(labels, scores > 0.5, sample_weight=w), nan_ok=True)


def test_the_average_precision_ranks_cases_of_which_the_network_is_sure():
    """Logits of 100 and more give probabilities of 1, but not of 0: those of the other class rank them."""
    logits = torch.tensor([100.0, 150, 200, 120, 180, 110], dtype=torch.float64)
    probabilities = torch.stack([-logits, torch.zeros(6)], 1).softmax(1).numpy()
    labels = np.array([0, 1, 1, 0, 1, 0])
    assert (probabilities[:, 1] == 1).all()
    assert further(probabilities, labels, HALF, np.ones((1, 6)))["average_precision"][0] == 1


def test_calibration_by_hand():
    """Two cases at 0.95, one right: |1 - 1.9| / 4; two at 0.75, both right: |2 - 1.5| / 4."""
    scores, labels = np.array([0.95, 0.95, 0.75, 0.75]), np.array([1, 0, 1, 1])
    assert further(of_positives(scores), labels, HALF, np.ones((1, 4)))["ece"][0] == pytest.approx(1.4 / 4)
    low, high = reliability(of_positives(scores), labels)
    assert low == {"n": 2, "confidence": pytest.approx(0.75), "accuracy": 1.0}
    assert high == {"n": 2, "confidence": pytest.approx(0.95), "accuracy": 0.5}


def test_patients_are_drawn_whole():
    owners = np.array([3, 3, 8, 8, 8, 1, 2, 4, 5])
    weights = draws(9, owners)
    assert weights.shape == (501, 9)
    assert (weights[0] == 1).all()
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 2] == weights[:, 4]).all()
    assert set(weights[1:, [0, 2, 5, 6, 7, 8]].sum(1)) == {6}
    np.testing.assert_array_equal(weights, draws(9, owners))


@pytest.mark.parametrize("owners", [np.full(6, 7), np.array([0, 0, 1, 2, 3, 4])], ids=["one", "five"])
def test_few_patients_give_no_interval(owners):
    weights = draws(6, owners)
    assert weights.tolist() == [[1] * 6]
    found = further(of_positives(np.array([0.9, 0.2, 0.7, 0.4, 0.6, 0.6])), np.array([1, 0, 1, 0, 0, 1]), HALF, weights)
    told = Drawn.of(found, 6, owners).numbers()
    assert told["intervals"] == {} and told["f1"] is not None


def test_what_is_right_in_all_draws_has_no_interval_of_no_width():
    """Three of three found do not say that all are."""
    scores = np.where(few := np.arange(20) < 3, 0.9, np.linspace(0, 0.4, 20))
    found = Drawn.of(further(of_positives(scores), few.astype(int), HALF, draws(20)), 20, None).numbers()
    assert found["sensitivity"] == found["specificity"] == found["f1"] == 1
    assert set(found["intervals"]) == {"brier", "ece"}


@pytest.mark.parametrize(
    ("cases", "patients", "without"),
    [(5, 5, True), (6, 6, False), (12, 4, True)],
    ids=["five cases", "six cases", "twelve cases of four patients"],
)
def test_means_over_classes_have_no_interval_where_one_has_few_patients(cases, patients, without):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [30, 30, cases])
    owners = np.concatenate([np.arange(60), 100 + np.arange(cases) % patients])
    scores = rng.dirichlet(np.ones(3), size=len(labels)) + np.eye(3)[labels] / 5
    test = scores / scores.sum(1, keepdims=True), labels
    known = {*TASK.further(test, test, owners).numbers()["intervals"]}
    over_classes = {"sensitivity", "f1", "average_precision"}
    assert known == (set(NAMES) - over_classes if without else set(NAMES))
    other = TASK.further((test[0][::-1], labels), test, owners)
    gained = TASK.further(test, test, owners).gains(other, TASK.signs)
    assert {name for name, gain in gained.items() if gain is None} == (over_classes if without else set())


def test_a_class_without_a_threshold_takes_no_interval_of_sensitivity_but_of_f1():
    """Nor does the first of two classes, of which no mean is."""
    true = np.repeat(np.eye(2, dtype=bool), [40, 3], axis=0)
    assert scarce(true[:, :1], ~true[:, :1], HALF[:1], None) == {"specificity", "f1", "average_precision"}
    assert scarce(true, ~true, np.array([np.nan, np.nan]), None) == {"f1", "average_precision"}
    assert scarce(true[:, 1:], ~true[:, 1:], HALF[1:], None) == {"sensitivity", "f1", "average_precision"}


def test_intervals_hold_about_as_often_as_they_say():
    rng, hits = np.random.default_rng(1), 0
    weights = draws(80)
    for _ in range(150):
        labels = rng.integers(2, size=80)
        scores = np.where(rng.random(80) < 0.8, labels, 1 - labels) * 0.8 + 0.1
        low, high = intervals(further(of_positives(scores), labels, HALF, weights), 80)["brier"]
        hits += low <= 2 * (0.8 * 0.01 + 0.2 * 0.81) <= high
    assert 0.88 <= hits / 150 <= 0.99


def test_an_interval_reaches_to_its_estimate():
    """The calibration error of cases drawn from these is larger than theirs, which are right as often as they say."""
    right = np.array([11, 13, 15, 17, 19])
    scores, labels = np.repeat(right / 20, 20), (np.arange(20) < right[:, None]).ravel()
    found = Drawn.of(further(of_positives(scores), labels, HALF, draws(100)), 100, None).numbers()
    assert found["ece"] == found["intervals"]["ece"][0] == pytest.approx(0, abs=1e-9)
    assert found["intervals"]["ece"][1] > 0.05


def test_what_is_gained_is_above_0_where_less_is_better():
    labels = np.array([0, 1] * 20)
    less_sure = np.repeat([0.0, 0.1], 20) * (1 - 2 * labels)
    good, bad = of_positives(labels * 0.8 + 0.1 + less_sure), of_positives(labels * 0.2 + 0.4)
    weights = draws(40)
    new, old, same = (Drawn.of(further(p, labels, HALF, weights), 40, None) for p in (good, bad, good))
    found = new.gains(old, SIGNS)
    assert found["brier"]["difference"] == pytest.approx(0.32 - (0.02 + 0.08) / 2)
    assert found["brier"]["low"] > 0 and found["ece"]["low"] > 0
    # Both answer every case rightly: of how far they may be apart on others this says nothing.
    assert found["sensitivity"] is found["f1"] is None
    assert new.gains(same, SIGNS)["f1"] == {"difference": 0, "low": 0, "high": 0}
    # Of no validation cases there are no thresholds, and neither has a sensitivity.
    uncut = Drawn.of(further(good, labels, np.full(2, np.nan), weights), 40, None)
    assert uncut.gains(uncut, SIGNS) == {**dict.fromkeys(SIGNS, new.gains(same, SIGNS)["f1"]), **NO_CUTS}


def test_a_class_that_no_case_has_counts_nowhere():
    labels = np.array([0, 1, 0, 1])
    probabilities = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.4, 0.5, 0.1]])
    found = estimates(further(probabilities, labels, np.full(3, 0.5), np.ones((1, 4))))
    assert (found["f1"], found["sensitivity"], found["specificity"], found["average_precision"]) == (1, 1, 1, 1)
