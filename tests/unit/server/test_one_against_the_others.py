"""What bounds one site's weight: its number of samples, its likeness to another, and the absence of others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from plans import MEANS, hello, joined, make_plan, next_values, round_of, statistics, trained
from tiny import config

from medpfl.algorithms.fedap.similarity import copies, similarity_weights
from medpfl.core.errors import UserError
from medpfl.core.mixing import cap_others, counted_samples, restrict, uniform_weights
from medpfl.core.server_state import ServerState
from medpfl.server.rounds import advance
from medpfl.server.weighing import mean_shared, mixing_matrix


def test_a_number_of_samples_counts_ten_times_the_median_at_most():
    plan = make_plan(sites=5)
    start = joined(plan, samples=(10**9, 10, 20, 10, 5))
    [failure] = start.failures
    assert failure.site == "site-1"
    assert failure.reason == "it has 1000000000 training samples; it counts as one of 100, 10 times the median"
    assert start.samples["site-1"] == 10**9  # as it was said
    weights = mixing_matrix(plan, start, range(5))
    np.testing.assert_allclose(weights[0] * 145, [100, 10, 20, 10, 5])


def test_it_is_told_once_and_not_in_every_round():
    plan = make_plan()
    start = joined(plan, samples=(10**9, 10, 20))
    assert round_of(plan, round_of(plan, start, 1, 1, 1), 1, 1, 1).failures == start.failures != ()


def test_the_largest_weight_is_a_setting():
    plan = make_plan(largest_weight=2)
    state = round_of(plan, joined(plan, samples=(1000, 10, 10)), 4, 0, 0)
    assert next_values(plan, state) == [2.0] * 3  # 20 of 40


def test_the_mean_that_steps_at_the_server_take_has_the_same_weights():
    """Of three sites that each keep their own, with 10, 10 and 100 samples as they count."""
    plan = make_plan("fedbn", mixing="uniform", settings={"lambda": 1.0})
    state = round_of(plan, joined(plan, samples=(10, 10, 1000)), 1, 2, 3)
    assert next_values(plan, state) == [1, 2, 3]
    assert mean_shared(plan, state)["0.bias"].tolist() == pytest.approx([330 / 120] * 2)


def test_the_mean_of_one_common_model_is_that_model_to_the_last_bit():
    plan = make_plan()
    state = round_of(plan, joined(plan, samples=(10, 20, 35)), 0.1, 0.7, -0.3)
    assert all(mean_shared(plan, state)[name] is tensor for name, tensor in state.shared["site-1"].items())


def test_methods_that_do_not_weigh_by_samples_say_nothing():
    plan = make_plan("fedap", mixing="uniform")
    assert joined(plan, samples=(10**9, 10, 10)).failures == ()


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.floats(1, 100))
def test_counted_samples(samples, largest):
    counted = counted_samples(samples, largest)
    limit = largest * np.median([n for n in samples if n] or [0])
    for n, c in zip(samples, counted, strict=True):
        assert c == n if n <= limit else 1 <= c <= max(1, limit)
    assert counted == counted_samples(samples, largest)


def test_uneven_sites_below_the_limit_count_as_they_are():
    assert counted_samples([1, 50, 60, 70, 600], 10) == [1, 50, 60, 70, 600]
    assert counted_samples([0, 0, 0, 10, 100], 2) == [0, 0, 0, 10, 100]  # twice 55, the median of those that have some


def test_equal_statistics_are_noted_and_give_no_weight():
    plan = make_plan("fedap", sites=4)
    replies = [hello(s, **statistics(m)) for s, m in zip(plan.config.site_names, (5.0, 0.0, 1.0, 5.0), strict=True)]
    state = advance(plan, ServerState(), replies, 0)
    [failure] = state.failures
    assert failure.site == "site-4"
    assert failure.reason.startswith("its statistics are those of site-1 to the last bit")
    # Known distances: 5, 4 (twice) and 1; between the copies their mean, 23 / 5... over ordered pairs.
    assert state.weights[0, 3] < 0.2
    assert state.weights[3, 0] < 0.2
    np.testing.assert_allclose(state.weights.sum(1), 1)


def test_statistics_that_never_moved_give_no_weight_either_and_are_not_told():
    """Running ones of batches of one image: the sites are not copies of each other, and not alike."""
    plan = make_plan("fedap", sites=4)
    replies = [hello(s, **statistics(m)) for s, m in zip(plan.config.site_names, (0.0, 0.0, 1.0, 5.0), strict=True)]
    state = advance(plan, ServerState(), replies, 0)
    assert state.failures == ()
    assert 0 < state.weights[0, 1] < state.weights[0, 2]
    np.testing.assert_allclose(state.weights.sum(1), 1)


def test_sites_of_the_same_data_all_of_them_weigh_the_same():
    plan = make_plan("fedap")
    replies = [hello(s, **statistics(1.0)) for s in plan.config.site_names]
    state = advance(plan, ServerState(), replies, 0)
    np.testing.assert_allclose(state.weights, uniform_weights(3, 0.5))
    assert len(state.failures) == 3  # a pair each


def test_copies_are_told_once():
    plan = make_plan("fedap", sites=4, min_sites=2)
    names = plan.config.site_names
    early = [hello(s, **statistics(m)) for s, m in zip(names[:3], (5.0, 5.0, 1.0), strict=True)]
    state = advance(plan, ServerState(), early, 0)
    assert len([f for f in state.failures if "last bit" in f.reason]) == 1
    late = hello(names[3], **statistics(2.0))
    state = advance(plan, state, [*(trained_all(plan, state)), late], 0)
    assert len([f for f in state.failures if "last bit" in f.reason]) == 1


def trained_all(plan, state):
    return [trained(plan, s, state.round + 1, 1) for s in state.samples]


def test_copies_by_hand():
    a, b = {"x": (np.zeros(2), np.ones(2))}, {"x": (np.zeros(2), np.full(2, 2.0))}
    assert copies([a, b, {"x": (np.zeros(2), np.ones(2))}, b]) == [(0, 2), (1, 3)]


def test_a_near_copy_weighs_no_more_than_the_cap():
    """A copy that differs in the last bits is at a tiny distance: all of the row's weight, but for the cap."""
    means = (0.0, 1.0, 3.0, 1e-9)
    open_, capped = make_plan("fedap", sites=4), make_plan("fedap", sites=4, weight_cap=0.2)
    published = joined(open_, means, samples=(10,) * 4)
    assert mixing_matrix(open_, published, range(4))[3, 0] > 0.4999
    state = joined(capped, means, samples=(10,) * 4)
    weights = mixing_matrix(capped, state, range(4))
    # 1/d of site 4 to the others: huge, 1, 1/3. 0.2 of 0.5 at most; 0.3 by 3 to 1 is 0.225, so 0.2 again; 0.1 is left.
    np.testing.assert_allclose(weights[3], [0.2, 0.2, 0.1, 0.5])
    assert weights[~np.eye(4, dtype=bool)].max() <= 0.2
    # With sites 2 and 3 away the rest stays with the site itself.
    alone = mixing_matrix(capped, state, [0, 3])
    np.testing.assert_allclose(alone[3], [0.2, 0.8])
    # A site that is away itself, and would be given one other's model, keeps what it has.
    assert not alone[1].any()


def test_the_cap_holds_in_the_mix():
    plan = make_plan("fedap", weight_cap=0.25)
    state = round_of(plan, joined(plan, MEANS), 0, 0, 4)
    assert next_values(plan, state) == pytest.approx([1.0, 1.0, 2.0])
    absent = round_of(plan, state, None, 0, 4)
    values = next_values(plan, absent)
    assert values[1] == pytest.approx(1.0)  # a quarter of 4
    assert values[0] == pytest.approx(1.0)  # away, kept


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"algorithm": "fedap", "weight_cap": 0.2}, "weight_cap 0.2 is too small: 2 other sites weigh 0.5 in all"),
        ({"algorithm": "fedap", "mixing": "uniform", "weight_cap": 0.1}, "give 0.25 or more, or a larger lambda"),
        ({"algorithm": "fedap", "weight_cap": 0}, "weight_cap"),
        ({"algorithm": "fedavg", "largest_weight": 0.5}, "largest_weight"),
    ],
)
def test_caps_that_cannot_be_held_are_refused(fields, words):
    with pytest.raises(UserError, match=words):
        config(**fields)


def test_a_cap_of_exactly_the_equal_share_is_the_uniform_matrix():
    plan = make_plan("fedap", weight_cap=0.25)
    np.testing.assert_allclose(mixing_matrix(plan, joined(plan, MEANS), range(3)), uniform_weights(3, 0.5))


def test_a_cap_that_is_a_rounding_above_the_equal_share_caps_all():
    others, cap = np.array([0.2012097206644221, *[0.10672755022024441] * 6]), 0.12022500314084121
    assert 0 < 7 * cap - others.sum() < 1e-15
    row = np.array([[1 - others.sum(), *others]])
    np.testing.assert_allclose(cap_others(row, [0], cap), [[1 - others.sum(), *[cap] * 7]])


distances = st.integers(2, 8).flatmap(lambda n: arrays(np.float64, (n, n), elements=st.floats(1e-12, 1e12)))


@given(distances, st.floats(0, 0.99), st.floats(0, 1), st.data())
def test_capped_rows(raw, self_weight, slack, data):
    n = len(raw)
    d = raw + raw.T
    weights = similarity_weights(d, self_weight)
    least = (1 - self_weight) / (n - 1)
    cap = least + slack * (1 - least)
    capped = cap_others(weights, range(n), cap)
    off = ~np.eye(n, dtype=bool)
    assert (capped >= 0).all()
    np.testing.assert_allclose(capped.sum(1), 1)
    assert capped[off].max() <= cap * (1 + 1e-9)
    np.testing.assert_allclose(np.diag(capped), self_weight, atol=1e-9)  # a cap that can be held takes from others only
    for row, before in zip(capped[off].reshape(n, -1), weights[off].reshape(n, -1), strict=True):
        if before.max() <= cap:
            np.testing.assert_array_equal(row, before)
        # What is not at the cap has kept its proportions, and whoever weighed more still weighs no less.
        free = row < cap * (1 - 1e-9)
        if free.sum() > 1 and before[free].min() > 1e-9:
            ratios = row[free] / before[free]
            np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
        order = np.argsort(before)
        assert (np.diff(row[order]) >= -1e-12).all()

    present = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    column = {site: i for i, site in enumerate(present)}
    own = [column.get(i) for i in range(n)]
    there = cap_others(restrict(weights, present), own, cap)
    for row, mine in zip(there, own, strict=True):
        others = [w for i, w in enumerate(row) if i != mine]
        assert max(others, default=0) <= cap * (1 + 1e-9)
        assert not row.any() or row.sum() == pytest.approx(1)
        assert mine is None or not self_weight or row.any()


@given(distances, st.floats(0, 1))
def test_without_a_cap_the_matrix_is_as_published(raw, self_weight):
    weights = similarity_weights(raw + raw.T, self_weight)
    np.testing.assert_array_equal(cap_others(weights, range(len(raw)), 1.0), weights)


def test_who_is_not_there_has_what_the_others_may_weigh_and_nothing_where_they_may_not():
    np.testing.assert_allclose(cap_others(np.array([[0.5, 0.3, 0.2]]), [None], 0.4), [[0.4, 0.36, 0.24]])
    np.testing.assert_array_equal(cap_others(np.array([[0.5, 0.3, 0.2]]), [None], 0.3), [[0, 0, 0]])


def test_weight_on_one_site_alone_is_shared_among_the_rest():
    weights = np.array([[0.5, 0.5, 0.0, 0.0]] * 4)
    np.testing.assert_allclose(cap_others(weights, [0] * 4, 0.2)[0], [0.5, 0.2, 0.15, 0.15])
