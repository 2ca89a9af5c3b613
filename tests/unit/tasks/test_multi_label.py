"""Several labels: unknown ones count nowhere; measures, losses and mixes by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, recall_score, roc_auc_score
from torch import nn

from medpfl.core.gain import verdict
from medpfl.core.own_loaders import OtherLabels
from medpfl.core.site_data import SiteLoaders
from medpfl.models.blend import blended, restored
from medpfl.tasks import TASKS
from medpfl.tasks.evaluation import Cases
from medpfl.tasks.further import NAMES
from medpfl.tasks.further_labels import further_of_labels, label_reliability, label_thresholds

TASK = TASKS["multi-label"]


def test_the_loss_counts_known_labels_alone():
    output, labels = torch.tensor([[0.0, 9.0], [2.0, -9.0]]), torch.tensor([[1, -1], [0, -1]])
    right = nn.functional.binary_cross_entropy_with_logits(output[:, 0], labels[:, 0].float())
    assert TASK.loss(output, labels) == pytest.approx(float(right))
    assert TASK.loss(output, torch.full((2, 2), -1)) == 0


def test_labels_without_an_output_are_counted():
    with pytest.raises(OtherLabels, match="a batch has 1 labels a sample, and the model 3 outputs: one for each"):
        TASK.loss(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))


def test_a_single_label_of_a_loader_is_one_column():
    """Loaders give (B, 1) as (B,), as classes are."""
    data = SiteLoaders(train=[], validation=[(torch.zeros(4, 2), torch.tensor([[1], [0], [-1], [1]]))])
    probabilities, labels = TASK.predict(nn.Linear(2, 1), data, "validation")
    assert (probabilities.shape, labels.tolist()) == ((4, 1), [[1], [0], [-1], [1]])
    output = torch.tensor([[0.3], [-0.2]])
    assert TASK.loss(output, torch.tensor([1, 0])) == TASK.loss(output, torch.tensor([[1], [0]]))


@settings(max_examples=30)
@given(st.integers(6, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_auc_is_the_mean_over_labels_of_the_known_cases(n, labels, seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(-1, 2, size=(n, labels))
    scores = rng.random((n, labels)).round(1)
    found = TASK.measured((scores, truth))
    expected = [
        roc_auc_score(truth[k, j], scores[k, j]) if len(set(truth[k, j])) == 2 else None
        for j in range(labels)
        for k in [truth[:, j] >= 0]
    ]
    assert found["auroc_by_label"] == [None if e is None else pytest.approx(e) for e in expected]
    known = [e for e in expected if e is not None]
    assert found["auroc"] == (pytest.approx(np.mean(known)) if known else None)
    if known:
        low, high = found["auroc_ci95"]
        assert 0 <= low <= found["auroc"] <= high <= 1


def test_a_label_that_all_known_cases_have_has_no_auc():
    found = TASK.measured((np.array([[0.9], [0.4], [0.2]]), np.array([[1], [1], [-1]])))
    assert (found["auroc"], found["auroc_ci95"], found["auroc_by_label"]) == (None, None, [None])


def test_unknown_cases_leave_aucs_and_their_intervals_as_they_are():
    rng, truth = np.random.default_rng(1), np.arange(16)[:, None] % [2, 3] == 0
    scores = rng.normal(size=(16, 2)) + truth
    found = TASK.measured((scores, truth.astype(int)))
    more = np.r_[scores, rng.normal(size=(9, 2))], np.r_[truth.astype(int), np.full((9, 2), -1)]
    assert TASK.measured(more)["auroc_by_label"] == found["auroc_by_label"]
    assert TASK.measured(more)["auroc_ci95"] == pytest.approx(found["auroc_ci95"])


def test_accuracy_losses_and_gains_by_hand():
    truth = np.array([[1, 0], [0, -1]])
    good, bad = np.array([[0.9, 0.1], [0.2, 0.9]]), np.array([[0.4, 0.1], [0.2, 0.1]])
    assert TASK.measured((good, truth))["accuracy"] == 1.0
    assert TASK.measured((bad, truth))["accuracy"] == pytest.approx(2 / 3)
    assert TASK.losses((good, truth)) == pytest.approx([-np.log(0.9), -np.log(0.8)])
    gained = TASK.gained((good, truth), (bad, truth))
    assert gained["accuracy"]["difference"] == pytest.approx(1 / 3)  # three labels are known
    assert gained["auroc"]["difference"] == pytest.approx(0.0)
    broken = good.copy()
    broken[1, 0] = np.nan  # its label is 0, which no comparison with 0.5 must make right
    gained = TASK.gained((good, truth), (broken, truth))
    assert gained["accuracy"]["difference"] == pytest.approx(1 / 3) and gained["auroc"] is None


@settings(max_examples=30)
@given(st.integers(2, 30), st.integers(1, 5), st.integers(0, 10**6))
def test_a_gain_in_accuracy_is_the_difference_of_the_accuracies(n, labels, seed):
    """Also where of some cases many labels are known and of others few."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(-1, 2, size=(n, labels))
    new, old = rng.random((2, n, labels))
    accuracies = [TASK.measured((probabilities, truth))["accuracy"] for probabilities in (new, old)]
    gained = TASK.gained((new, truth), (old, truth))["accuracy"]
    if gained:
        assert gained["difference"] == pytest.approx(accuracies[0] - accuracies[1], abs=1e-12)
        assert gained["low"] <= gained["difference"] <= gained["high"]


def test_two_networks_together_give_the_mean_probability():
    torch.manual_seed(0)
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3)
    expected = 0.7 * one(x).sigmoid() + 0.3 * two(x).sigmoid()
    both = restored(nn.Linear(3, 2), blended(one.state_dict(), two.state_dict(), 0.3, sigmoid=True))
    torch.testing.assert_close(both(x).sigmoid(), expected)


def test_networks_of_another_number_of_outputs_are_refused():
    assert TASK.misfit((2, 14), (2, 1, 28, 28), 14) is None
    assert "each of 14 labels" in TASK.misfit((2, 11), (2, 1, 28, 28), 14)


@settings(max_examples=30)
@given(st.integers(8, 60), st.integers(1, 4), st.integers(0, 10**6))
def test_further_measures_are_scikit_learns_over_the_known_cases(n, labels, seed):
    rng = np.random.default_rng(seed)
    truth, scores = rng.integers(-1, 2, size=(n, labels)), rng.random((n, labels)).round(1)
    truth[:2] = [[0] * labels, [1] * labels]
    weights = np.vstack([np.ones(n), rng.integers(0, 3, n)])
    weights[:, :2] = 1
    found = further_of_labels(scores, truth, np.full(labels, 0.4), weights)
    known = truth >= 0
    for row, w in enumerate(weights):
        each = [(truth[k, j], scores[k, j], w[k]) for j, k in enumerate(known.T)]
        for name, of in (
            ("average_precision", lambda y, p, v: average_precision_score(y, p, sample_weight=v)),
            ("f1", lambda y, p, v: f1_score(y, p > 0.5, sample_weight=v)),
            ("sensitivity", lambda y, p, v: recall_score(y, p >= 0.4, sample_weight=v)),
            ("specificity", lambda y, p, v: recall_score(y == 0, p < 0.4, sample_weight=v)),
        ):
            assert found[name][row] == pytest.approx(np.mean([of(*one) for one in each])), name
        pairs = np.repeat(w, labels).reshape(n, labels)[known]
        brier = np.average(np.square(scores - truth)[known], weights=pairs)
        assert found["brier"][row] == pytest.approx(brier)


def test_calibration_of_labels_by_hand():
    """Confidence 0.9 and right, 0.8 and wrong, 0.6 and right; one is not known."""
    scores, truth = np.array([[0.9, 0.2], [0.6, 0.7]]), np.array([[1, 1], [1, -1]])
    found = further_of_labels(scores, truth, np.full(2, np.nan), np.ones((1, 2)))
    assert found["ece"][0] == pytest.approx((abs(1 - 0.9) + abs(0 - 0.8) + abs(1 - 0.6)) / 3)
    assert np.isnan(found["sensitivity"][0])  # there was no validation case
    assert [(b["n"], b["accuracy"]) for b in label_reliability(scores, truth)] == [(1, 1.0), (1, 0.0), (1, 1.0)]


def test_thresholds_are_of_the_validation_cases_that_are_known():
    scores = np.array([[0.9, 0.3], [0.6, 0.2], [0.1, 0.8], [0.2, 0.9]])
    truth = np.array([[1, 1], [1, -1], [0, 1], [-1, 1]])
    assert label_thresholds(scores, truth)[0] == 0.6
    assert np.isnan(label_thresholds(scores, truth)[1])  # all known cases have it


def test_a_run_tells_them_with_intervals_and_gains():
    rng = np.random.default_rng(0)
    truth, noise = rng.integers(-1, 2, size=(60, 3)), rng.normal(scale=0.3, size=(60, 3))
    good, bad = (np.clip(0.5 + size * (truth - 0.5) + noise, 0.01, 0.99) for size in (0.9, -0.5))
    better, worse = (TASK.further((p, truth), (p, truth), np.arange(60) // 2) for p in (good, bad))
    assert (better.values.keys(), better.patients) == (set(NAMES), 30)
    assert better.values["f1"].shape == (501,)
    gained = better.gains(worse, TASK.signs)
    # Scores the wrong way round are best called there, all of them.
    assert all(of["low"] > 0 for name, of in gained.items() if name != "sensitivity")
    assert TASK.schema(**TASK.measured((good, truth)), **better.numbers()).brier < 0.1
    assert TASK.further((good, np.full_like(truth, -1)), None, None) is None


@pytest.mark.parametrize("owners", [None, np.arange(12) // 2])
def test_patients_of_whom_no_label_is_known_widen_no_bootstrap(owners):
    """Five patients give no interval, however many there are beside them."""
    truth = np.full((12, 2), -1)
    truth[:10:2] = np.eye(2)[[0, 1, 0, 1, 0]]
    scores = np.random.default_rng(0).random((12, 2))
    found, alone = (
        TASK.further((scores[rows], truth[rows]), None, owners if owners is None else owners[rows])
        for rows in (slice(None), slice(0, 10, 2))
    )
    assert found.patients == 5
    assert found.numbers() == alone.numbers()
    assert found.numbers()["intervals"] == {}


def test_copies_of_a_patients_cases_narrow_no_interval_of_labels():
    rng, labels = np.random.default_rng(0), (np.arange(30)[:, None] % [2, 3] > 0).astype(int)
    once = np.clip(0.5 + 0.3 * (labels - 0.5) + 0.3 * rng.normal(size=labels.shape), 0.01, 0.99), labels
    alone = TASK.further(once, once, None).numbers()["intervals"]
    four = tuple(np.repeat(values, 4, axis=0) for values in once)
    again = TASK.further(four, once, np.repeat(np.arange(30), 4)).numbers()["intervals"]
    assert set(again) == set(alone) == set(NAMES)
    assert all(again[name] == pytest.approx(ends) for name, ends in alone.items())


def test_three_cases_that_are_known_not_to_have_a_label_give_its_specificity_no_interval():
    """However many there are of which it is not known."""
    rng, labels = np.random.default_rng(0), np.stack([np.repeat([1, 0, -1], [30, 3, 20]), np.arange(53) % 2], 1)
    scores = np.clip(0.5 + 0.2 * labels + 0.3 * rng.normal(size=labels.shape), 0.01, 0.99)
    found = TASK.further((scores, labels), (scores, labels), None).numbers()
    assert found["specificity"] is not None and set(found["intervals"]) == {"sensitivity", "brier", "ece"}


def test_a_patient_with_most_known_labels_is_one_patient():
    """Ten patients, one of whom has 42 of 69 known labels; each model is better at patients of its own."""
    rng, whose, trials, shown = np.random.default_rng(0), np.repeat(np.arange(10), 3), 300, 0
    for _ in range(trials):
        labels = rng.integers(0, 2, (30, 14))
        labels[whose > 0, 1:] = -1

        def drawn(labels=labels):
            sign = np.where(labels == 1, 1, -1)
            scores = sign * (1 + 2 * rng.normal(size=10)[whose][:, None]) + rng.normal(size=labels.shape)
            return 1 / (1 + np.exp(-scores)), labels

        found = TASK.gained(drawn(), drawn(), Cases("patient", whose))["accuracy"]
        shown += found is not None and verdict(found) != "no difference found"
    assert shown / trials <= 0.06


def test_patients_of_whom_a_label_is_not_known_are_not_counted():
    """Five who have it known are too few for a difference, whatever other labels of thirty more say of them."""
    rng, labels, whose = np.random.default_rng(0), np.full((70, 1), -1), np.r_[np.arange(40) % 5, 10:40]
    labels[:40, 0] = np.tile([0, 1], 20)
    new, old = (sign * (labels == 1) + 0.4 * rng.normal(size=(70, 1)) for sign in (1, -1))
    found = TASK.gained((new, labels), (old, labels), Cases("patient", whose))["auroc"]
    assert found["difference"] > 0.8 and verdict(found) == "no difference found"
