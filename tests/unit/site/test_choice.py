"""The rules by which a site chooses: by hand, and their error rates with few validation cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from medpfl.core.gain import fewest_to_choose
from medpfl.site import choice
from medpfl.site.choice import LEVEL, chosen, posterior_mean, share_of_further, supported


def losses_of(alone: np.ndarray, other: np.ndarray):
    """From the probabilities that two models give the labels."""
    return lambda weight: -np.log((1 - weight) * alone + weight * other)


NONE, MANY = 0, 1e12
TRAIN = [NONE, 100, MANY]
"""Training cases: the priors Beta(2, 1) and Beta(1, 1.5)."""
PRIORS = [(NONE, 3 / 4, 2 / 4), (300, 2.5 / 3.75, 1.5 / 3.75), (MANY, 2 / 3.5, 1 / 3.5)]


@pytest.mark.parametrize(("train", "right", "wrong"), PRIORS)
def test_one_case_by_hand(train, right, wrong):
    """The case adds 1 to the one or the other parameter of the prior; of 300 cases that is Beta(1.5, 1.25)."""
    for alone, other, mean in ((1e-12, 1.0, right), (1.0, 1e-12, wrong)):
        losses = losses_of(np.array([alone]), np.array([other]))
        total = np.array([losses(weight).sum() for weight in np.linspace(0, 1, 101)])
        assert posterior_mean(total, train) == pytest.approx(mean, abs=2e-3)


def test_n_such_cases_are_laplaces_rule():
    for n in (2, 5, 10):
        weight = chosen("blend", losses_of(np.full(n, 1e-12), np.ones(n)), NONE)
        assert weight == pytest.approx((n + 2) / (n + 3), abs=5e-3)


def test_without_cases_a_site_uses_its_own():
    nothing = losses_of(np.empty(0), np.empty(0))
    assert chosen("blend", nothing, NONE) == chosen("best", nothing, NONE) == 0.0
    assert chosen("received", nothing, NONE) == 1.0


def test_the_priors_mean():
    """2 / 3, the mean of Beta(2, 1), and 0.4, that of Beta(1, 1.5)."""
    assert posterior_mean(np.zeros(101), NONE) == pytest.approx(2 / 3, abs=1e-4)
    assert posterior_mean(np.zeros(101), MANY) == pytest.approx(0.4, abs=1e-4)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30), st.sampled_from(TRAIN))
def test_on_the_cases_together_it_costs_no_more_than_is_said(cases, train):
    alone, other = np.array(cases).T.clip(1e-5, 1)
    losses = losses_of(alone, other)
    weight = chosen("blend", losses, train)
    assert 0 <= weight <= 1
    assert losses(weight).sum() <= losses(0.0).sum() + np.log(2) + 1e-9


@pytest.mark.parametrize(("train", "most"), [(NONE, 10.6), (MANY, 4.9)])
def test_many_cases_of_a_useless_model_cost_no_more_than_the_priors_share_of_training_alone(train, most):
    """One after another; each case costs -log(1 - w)."""
    per_case, total = -np.log(np.linspace(1, 0, 101).clip(1e-12)), 0.0
    for n in range(1500):
        total -= np.log(1 - posterior_mean(n * per_case, train))
        bound = np.log(1 + 2 * (n + 1) / 3) if train == MANY else np.log((n + 2) * (n + 3) / 2)
        assert total <= min(bound, most) + 1e-3


def test_cases_that_do_not_tell_models_apart_give_none_a_share():
    """As masks without any structure: a prior is no reason to take what came."""
    assert chosen("blend", lambda w: np.zeros(3), NONE) == 0.0
    assert chosen("blend", losses_of(np.full(4, 0.3), np.full(4, 0.3)), NONE) == 0.0


def test_a_weight_that_two_digits_say_is_none_is_none():
    """The model gives every second label next to no probability: of so many cases the mean costs less than a bit."""
    losses = losses_of(np.ones(1000), np.where(np.arange(1000) % 2, 1e-12, 1.0))
    weight = posterior_mean(np.array([losses(w).sum() for w in np.linspace(0, 1, 101)]), MANY)
    assert 0 < weight < 0.005 and losses(weight).sum() < np.log(2)
    assert chosen("blend", losses, MANY) == 0.0


@pytest.mark.parametrize(("other", "used"), [(0.45, True), (0.3, False)])
def test_a_blend_that_costs_the_cases_more_than_a_bit_is_not_used(other, used):
    """Alone gives each of six labels 1/2: a mean weight of about a half costs six times -log(1 - w (1 - 2 p))."""
    losses = losses_of(np.full(6, 0.5), np.full(6, other))
    weight = posterior_mean(np.array([losses(w).sum() for w in np.linspace(0, 1, 101)]), NONE)
    assert (losses(weight).sum() - losses(0.0).sum() <= np.log(2)) == used
    assert chosen("blend", losses, NONE) == (pytest.approx(weight) if used else 0.0)


@pytest.mark.parametrize(("cases", "most"), [(10, 0.4), (30, 0.1)])
def test_a_model_that_is_worse_and_sure_of_itself_harms_few_sites(cases, most):
    """Of 73 training cases; by the bound of cases taken one after another eight and two of ten sites would lose so."""
    rng, trials, harmed = np.random.default_rng(cases), 150, 0

    def drawn(labels, strength, sureness, common):
        scores = strength * np.eye(5)[labels] + 0.7 * common + 0.7 * rng.normal(size=(len(labels), 5))
        return softmax(sureness * scores, axis=1)

    for _ in range(trials):
        found = []
        for n in (cases, 1000):
            labels, common = rng.integers(5, size=n), rng.normal(size=(n, 5))
            found.append((labels, drawn(labels, 1.8, 2, common), drawn(labels, 0.8, 8, common)))
        (y, *own), (labels, *tested) = found
        weight = chosen("blend", losses_of(*(p[np.arange(cases), y] for p in own)), 73)
        right = [(p.argmax(1) == labels).mean() for p in ((1 - weight) * tested[0] + weight * tested[1], tested[0])]
        harmed += right[0] < right[1] - 0.01
    assert harmed / trials <= most


def test_a_mask_that_costs_more_than_is_said_is_not_used():
    """Dice under a model that marks a thousand times as much as there is: it falls as 1 / (1 + 1000 w), to 0.05."""
    for n in (1, 2, 3, 10):
        weight = chosen("blend", lambda w, n=n: np.full(n, -np.log(max(0.05, (1 - w) / (1 + 1000 * w)))), NONE)
        assert weight == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("n", [10, 30])
@pytest.mark.parametrize("train", TRAIN)
def test_one_after_another_the_loss_is_hardly_above_that_of_training_alone(n, train):
    """The bound of the priors, for cases as they fall and for another model that is wrong on all of them."""
    bound = np.log(1 + 2 * n / 3) if train == MANY else np.log((n + 1) * (n + 2) / 2)
    rng = np.random.default_rng(n)
    drawn = [rng.beta(0.3, 0.3, (2, n)).clip(1e-4, 1) for _ in range(12)]
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


def test_averaged_weights_that_are_worse_than_both_ends_are_not_taken():
    """A barrier between two good networks: the mean of five shares lies on it."""
    assert share_of_further(lambda s: np.array([0.0 if s in (0, 1) else 9.0])) == 0
    assert share_of_further(lambda s: np.array([{0: 0.1, 1: 0.0}.get(s, 9.0)])) == 1


def test_nor_those_that_the_training_cases_speak_against():
    """Validation cases are few: here three that tell nothing."""
    flat = lambda share: np.full(3, 0.5)  # noqa: E731
    barrier = lambda share: np.full(30, {0: 0.4, 1: 0.05}.get(share, 0.7))  # noqa: E731
    assert share_of_further(flat, barrier) == 0
    assert share_of_further(lambda s: flat(s) - 0.01 * s, barrier) == 1
    # By log 5 in all is what a mean over a valley may cost.
    assert share_of_further(flat, lambda s: np.full(30, {0: 0.4, 1: 0.05}.get(s, 0.45))) == 0.5
    # What is better than one end is in no way worse than both, and where training cases cannot be had none are asked.
    assert share_of_further(flat, lambda s: np.full(30, 1 - s)) == share_of_further(flat) == 0.5
    assert share_of_further(flat, lambda s: np.full(30, s)) == 0.5


def test_further_training_that_broke_the_network_has_no_share_at_all():
    """Any share of NaN is NaN."""
    assert share_of_further(lambda s: np.full(2, 12.0 if s else 0.1)) == 0


def test_many_cases_are_tested_a_part_at_a_time(monkeypatch):
    gains = np.random.default_rng(5).normal(size=50)
    at_once = [supported(gains + shift) for shift in (-1, 0, 1)]
    monkeypatch.setattr(choice, "_AT_ONCE", 5000)
    assert [supported(gains + shift) for shift in (-1, 0, 1)] == at_once == [False, False, True]


@pytest.mark.parametrize("n", [10, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 30))])
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


@pytest.mark.parametrize("others", range(1, 7))
def test_so_many_cases_can_choose_as_are_said_to(others):
    """The best of up to six models, of two rounds with three candidates each, which all cases agree on."""
    least = fewest_to_choose("best")
    assert chosen("best", losses_of(np.full(least, 0.5), np.full(least, 0.9)), NONE, others) == 1.0
    assert chosen("best", losses_of(np.full(least - 1, 0.5), np.full(least - 1, 0.9)), NONE, 6) == 0.0
