"""Several labels: unknown ones count nowhere; measures, losses and mixes by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import nn

from medpfl.models.blend import blended, restored
from medpfl.tasks import TASKS

TASK = TASKS["multi-label"]


def test_the_loss_counts_known_labels_alone():
    output, labels = torch.tensor([[0.0, 9.0], [2.0, -9.0]]), torch.tensor([[1, -1], [0, -1]])
    right = nn.functional.binary_cross_entropy_with_logits(output[:, 0], labels[:, 0].float())
    assert TASK.loss(output, labels) == pytest.approx(float(right))
    assert TASK.loss(output, torch.full((2, 2), -1)) == 0


@settings(deadline=None, max_examples=30)
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


def test_accuracy_losses_and_gains_by_hand():
    truth = np.array([[1, 0], [0, -1]])
    good, bad = np.array([[0.9, 0.1], [0.2, 0.9]]), np.array([[0.4, 0.1], [0.2, 0.1]])
    assert TASK.measured((good, truth))["accuracy"] == 1.0
    assert TASK.measured((bad, truth))["accuracy"] == pytest.approx(2 / 3)
    assert TASK.losses((good, truth)) == pytest.approx([-np.log(0.9), -np.log(0.8)])
    gained = TASK.gained((good, truth), (bad, truth))
    assert gained["accuracy"]["difference"] == pytest.approx(0.25)
    assert gained["auroc"]["difference"] == pytest.approx(0.0)


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
