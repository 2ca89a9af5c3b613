import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from medpfl.algorithms.fedap.similarity import similarity_weights, wasserstein_distances


def statistics(seed, sites=4, layers=(3, 5)):
    rng = np.random.default_rng(seed)
    return [{f"bn{i}": (rng.normal(size=c), rng.random(c)) for i, c in enumerate(layers)} for _ in range(sites)]


def brute_force(a, b):
    """The 2-Wasserstein distance of two diagonal Gaussians, written out; summed over layers."""
    total = 0.0
    for layer in a:
        squares = 0.0
        for channel in range(len(a[layer][0])):
            squares += (a[layer][0][channel] - b[layer][0][channel]) ** 2
            squares += (a[layer][1][channel] ** 0.5 - b[layer][1][channel] ** 0.5) ** 2
        total += squares**0.5
    return total


def test_distance_by_hand():
    a = {"bn": (np.array([0.0, 1.0]), np.array([1.0, 4.0]))}
    b = {"bn": (np.array([3.0, 1.0]), np.array([25.0, 4.0]))}
    np.testing.assert_allclose(wasserstein_distances([a, b]), [[0, 5], [5, 0]])


def test_layers_add_up():
    zero, one = (np.zeros(1), np.ones(1)), (np.full(1, 2.0), np.ones(1))
    distances = wasserstein_distances([{"a": zero, "b": zero}, {"a": one, "b": zero}, {"a": one, "b": one}])
    np.testing.assert_allclose(distances, [[0, 2, 4], [2, 0, 2], [4, 2, 0]])


@pytest.mark.parametrize("seed", range(3))
def test_distances_against_brute_force(seed):
    given_ = statistics(seed)
    expected = [[brute_force(a, b) for b in given_] for a in given_]
    np.testing.assert_allclose(wasserstein_distances(given_), expected, rtol=1e-12, atol=1e-15)


def test_nearly_identical_sites_keep_their_distance():
    a = {"bn": (np.array([1e4]), np.array([1.0]))}
    b = {"bn": (np.array([1e4 + 1e-8]), np.array([1.0]))}
    np.testing.assert_allclose(wasserstein_distances([a, b])[0, 1], 1e-8, rtol=1e-3)


def test_order_of_layers_changes_no_bit():
    given_ = statistics(0, layers=(3, 5, 2, 7))
    turned = [dict(reversed(s.items())) for s in given_]
    np.testing.assert_array_equal(wasserstein_distances(given_), wasserstein_distances(turned))


D = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
W = np.array([[0.5, 3 / 8, 1 / 8], [1 / 3, 0.5, 1 / 6], [0.2, 0.3, 0.5]])


def test_weights_by_hand():
    np.testing.assert_allclose(similarity_weights(D, 0.5), W, rtol=1e-14)
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(similarity_weights(D, 0.8)[off], 0.4 * W[off], rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_only_ratios_count(scale):
    np.testing.assert_allclose(similarity_weights(D * scale, 0.5), W, rtol=1e-9)


def test_identical_sites_share_the_mass():
    distances = np.array([[0.0, 0.0, 0.0, 7.0], [0.0, 0.0, 0.0, 7.0], [0.0, 0.0, 0.0, 7.0], [7.0, 7.0, 7.0, 0.0]])
    expected = [[0.6, 0.2, 0.2, 0], [0.2, 0.6, 0.2, 0], [0.2, 0.2, 0.6, 0], [0.4 / 3, 0.4 / 3, 0.4 / 3, 0.6]]
    np.testing.assert_allclose(similarity_weights(distances, 0.6), expected)


def test_all_sites_identical():
    np.testing.assert_allclose(similarity_weights(np.zeros((3, 3)), 0.5), np.full((3, 3), 0.25) + np.eye(3) / 4)


def test_one_site_mixes_with_itself():
    np.testing.assert_array_equal(similarity_weights(np.zeros((1, 1)), 0.5), [[1.0]])


def test_unknown_distances_count_as_the_mean_of_the_known():
    distances = D.copy()
    distances[2], distances[:, 2] = np.nan, np.nan
    # Only d_12 = 1 is known.
    np.testing.assert_allclose(similarity_weights(distances, 0.5), np.full((3, 3), 0.25) + np.eye(3) / 4)
    np.testing.assert_allclose(similarity_weights(np.full((2, 2), np.nan), 0.7), [[0.7, 0.3], [0.3, 0.7]])


@pytest.mark.parametrize("self_weight", [0.0, 1.0])
def test_extremes_of_lambda(self_weight):
    weights = similarity_weights(D, self_weight)
    np.testing.assert_array_equal(np.diag(weights), self_weight)
    np.testing.assert_allclose(weights.sum(axis=1), 1)


distances = st.integers(2, 8).flatmap(
    lambda n: arrays(float, (n, n), elements=st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.just(np.nan)))
)


@given(distances.map(lambda a: np.triu(a, 1) + np.triu(a, 1).T), st.floats(0, 1))
def test_rows_always_sum_to_one(d, self_weight):
    weights = similarity_weights(d, self_weight)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_array_equal(np.diag(weights), self_weight)


@given(st.integers(0, 99), st.permutations(range(4)))
def test_names_of_sites_do_not_matter(seed, order):
    given_ = statistics(seed)
    weights = similarity_weights(wasserstein_distances(given_), 0.5)
    renamed = similarity_weights(wasserstein_distances([given_[i] for i in order]), 0.5)
    np.testing.assert_allclose(renamed, weights[np.ix_(order, order)], rtol=1e-12)
