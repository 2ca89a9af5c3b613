"""The rules by which a site chooses: by hand, and their error rates with few validation cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medpfl.site.choice import LEVEL, chosen, posterior_mean, share_of_further, supported


def losses_of(alone: np.ndarray, other: np.ndarray):
    """From the probabilities that two models give the labels."""
    return lambda weight: -np.log((1 - weight) * alone + weight * other)


NONE, MANY = 0, 1e12
"""Training cases: the priors Beta(2, 1) and Beta(1, 1.5)."""
PRIORS = [(NONE, 3 / 4, 2 / 4), (300, 2.5 / 3.75, 1.5 / 3.75), (MANY, 2 / 3.5, 1 / 3.5)]


@pytest.mark.parametrize(("train", "right", "wrong"), PRIORS)
def test_one_case_by_hand(train, right, wrong):
    """The case adds 1 to the one or the other parameter of the prior; of 300 cases that is Beta(1.5, 1.25)."""
    assert chosen("blend", losses_of(np.array([1e-12]), np.array([1.0])), train) == pytest.approx(right, abs=2e-3)
    assert chosen("blend", losses_of(np.array([1.0]), np.array([1e-12])), train) == pytest.approx(wrong, abs=2e-3)


def test_n_such_cases_are_laplaces_rule():
    for n in (2, 5, 10):
        weight = chosen("blend", losses_of(np.full(n, 1e-12), np.ones(n)), NONE)
        assert weight == pytest.approx((n + 2) / (n + 3), abs=5e-3)


def test_without_cases_a_site_uses_its_own():
    nothing = losses_of(np.empty(0), np.empty(0))
    assert chosen("blend", nothing, NONE) == chosen("best", nothing, NONE) == 0.0
    assert chosen("received", nothing, NONE) == 1.0


@given(st.lists(st.tuples(st.floats(1e-5, 1), st.floats(1e-5, 1)), min_size=1, max_size=30))
def test_it_is_a_weight_and_the_priors_where_models_are_equal(cases):
    """2 / 3, the mean of Beta(2, 1), and 0.4, that of Beta(1, 1.5)."""
    alone, other = np.array(cases).T
    assert 0 <= chosen("blend", losses_of(alone, other), NONE) <= 1
    assert chosen("blend", losses_of(alone, alone), NONE) == pytest.approx(2 / 3, abs=1e-3)
    assert chosen("blend", losses_of(alone, alone), MANY) == pytest.approx(0.4, abs=1e-3)


@pytest.mark.parametrize("n", [10, 20, 30])
@pytest.mark.parametrize("train", [NONE, 100, MANY])
def test_one_after_another_the_loss_is_hardly_above_that_of_training_alone(n, train):
    """The bound of the priors, for cases as they fall and for another model that is wrong on all of them."""
    bound = np.log(1 + 2 * n / 3) if train == MANY else np.log((n + 1) * (n + 2) / 2)
    rng = np.random.default_rng(n)
    drawn = [rng.beta(0.3, 0.3, (2, n)).clip(1e-4, 1) for _ in range(50)]
    for alone, other in [*drawn, (np.ones(n), np.full(n, 1e-9))]:
        total = 0.0
        for i in range(n):
            weight = posterior_mean(np.zeros(100), train)
            if i:
                weight = chosen("blend", losses_of(alone[:i], other[:i]), train)
            total += losses_of(alone[i], other[i])(weight)
        assert total <= losses_of(alone, other)(0.0).sum() + bound + 0.01


def test_the_share_of_further_training_by_hand():
    """Five shares, 0 to 1 by quarters; the cases make the last e times as likely as each other one."""
    e = np.e
    assert share_of_further(lambda s: np.array([0.0, 0.0 if s == 1 else 1.0])) == pytest.approx((1.5 + e) / (4 + e))
    assert share_of_further(lambda s: np.array([0.7])) == pytest.approx(0.5)
    assert share_of_further(lambda s: np.full(30, 5 * s)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("n", [10, 20, 30])
def test_best_takes_a_model_that_is_no_better_as_rarely_as_it_says(n):
    """Paired losses of two models that are equally good, heavy-tailed as losses are."""
    rng = np.random.default_rng(n)
    trials = 1000
    first, second = -np.log(rng.beta(2, 0.5, (2, trials, n)).clip(1e-5, 1))
    rate = np.mean([supported(a - b) for a, b in zip(first, second, strict=True)])
    assert rate <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / trials)


def test_best_takes_what_is_clearly_better_and_never_on_four_cases():
    assert chosen("best", losses_of(np.full(10, 0.5), np.full(10, 0.9)), MANY) == 1.0
    assert chosen("best", losses_of(np.full(10, 0.9), np.full(10, 0.5)), MANY) == 0.0
    assert chosen("best", losses_of(np.full(4, 0.1), np.full(4, 0.9)), NONE) == 0.0
