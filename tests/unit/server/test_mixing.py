import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plans import joined, make_plan, round_of
from tiny import config as tiny_config
from tiny import run, same

from medpfl.algorithms.mixing import Uniform
from medpfl.core.errors import UserError
from medpfl.core.mixing import mix, restrict, sample_weights, uniform_weights


def states(*values):
    return [{"w": torch.full((2, 2), float(v)), "b": torch.tensor([v, -v], dtype=torch.float32)} for v in values]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30).filter(any))
def test_sample_weights_are_shares(samples):
    weights = sample_weights(samples)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights == weights[0]).all()
    np.testing.assert_allclose(weights[0] * sum(samples), samples, rtol=1e-12)


@given(st.integers(2, 30), st.floats(0, 1))
def test_uniform_rows_sum_to_one(sites, self_weight):
    weights = uniform_weights(sites, self_weight)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_array_equal(np.diag(weights), self_weight)
    assert len(np.unique(weights[~np.eye(sites, dtype=bool)])) == 1


@given(st.integers(1, 8), st.data())
def test_restricted_rows_sum_to_one_or_are_absent(sites, data):
    weights = np.array(data.draw(st.lists(st.lists(st.floats(0, 1), min_size=sites, max_size=sites), min_size=1)))
    present = data.draw(st.lists(st.integers(0, sites - 1), min_size=1, unique=True))
    kept = restrict(weights, present)
    assert kept.shape == (len(weights), len(present))
    sums = kept.sum(axis=1)
    np.testing.assert_allclose(sums[kept.any(axis=1)], 1)
    np.testing.assert_array_equal(kept.any(axis=1), weights[:, present].any(axis=1))


def test_restrict_by_hand():
    weights = np.array([[0.5, 0.375, 0.125], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(restrict(weights, [0, 1]), [[4 / 7, 3 / 7], [0, 0], [0.4, 0.6]])


def test_two_sites_by_hand():
    first, second = mix(np.array([[0.75, 0.25], [0.25, 0.75]]), states(4, 8))
    assert torch.equal(first["w"], torch.full((2, 2), 5.0))
    assert torch.equal(second["b"], torch.tensor([7.0, -7.0]))


def test_float64_is_mixed_in_float64():
    """1/3 in float32 is off in the eighth digit."""
    weights = np.full((1, 3), 1 / 3)
    updates = [{"w": torch.tensor([v], dtype=torch.float64)} for v in (1.0, 2.0, 6.0 + 3e-12)]
    (mixed,) = mix(weights, updates)
    assert mixed["w"].dtype == torch.float64
    assert abs(mixed["w"].item() - (3 + 1e-12)) < 1e-14
    halves = mix(weights, [{"w": torch.tensor([v], dtype=torch.bfloat16)} for v in (1.0, 2.0, 6.0)])
    assert halves[0]["w"].dtype == torch.bfloat16


def test_three_sites_by_hand():
    weights = np.array([[0.5, 0.375, 0.125], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
    mixed = mix(weights, states(8, 16, 32))
    assert [m["w"][0, 0].item() for m in mixed] == [14.0, 18.0, 32.0]
    assert [m["b"][1].item() for m in mixed] == [-14.0, -18.0, -32.0]


def test_more_sites_than_updates():
    mixed = mix(np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]]), states(0, 4))
    assert [m["w"][0, 0].item() for m in mixed] == [2.0, 0.0, 3.0]


def test_equal_rows_are_one_state():
    a, b, c = mix(np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]]), states(1, 3))
    assert a is c
    assert a is not b


def test_identity_changes_no_bit():
    torch.manual_seed(0)
    updates = [{"w": torch.randn(50) * 10.0**k} for k in range(-4, 4)]
    expected = [u["w"].clone() for u in updates]
    assert all(torch.equal(m["w"], e) for m, e in zip(mix(np.eye(8), updates), expected, strict=True))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_against_a_float64_sum(sites, present, seed):
    rng = np.random.default_rng(seed)
    weights = restrict(rng.random((sites, present)) + 0.01, range(present))
    arrays = rng.normal(size=(present, 3, 2)).astype(np.float32)
    mixed = mix(weights, [{"w": torch.from_numpy(a)} for a in arrays])
    for row, state in zip(weights, mixed, strict=True):
        assert state["w"].shape == (3, 2)
        np.testing.assert_allclose(state["w"].numpy(), np.tensordot(row, arrays.astype(float), 1), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_are_kept(dtype):
    (mixed,) = mix(
        np.array([[0.5, 0.5]]), [{"w": torch.tensor([1.0], dtype=dtype)}, {"w": torch.tensor([2.0], dtype=dtype)}]
    )
    assert mixed["w"].dtype == dtype
    assert mixed["w"].item() == 1.5


def test_scalars_and_emptied_updates():
    updates = [{"scale": torch.tensor(1.0)}, {"scale": torch.tensor(3.0)}]
    (mixed,) = mix(np.array([[0.5, 0.5]]), updates)
    assert mixed["scale"].shape == ()
    assert mixed["scale"].item() == 2.0
    assert updates == [{}, {}]


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.full((3, 3), np.nan), "entries that are negative, NaN or infinite"),
        (np.array([[1.5, -0.5, 0], [0, 1, 0], [0, 0, 1]]), "entries that are negative"),
        (np.ones((3, 3)), "a row of W sums to 3; 1 is needed"),
        (np.eye(4), r"W must be an array of 3x3, not ndarray \[4, 4\]"),
        ([[1, 0, 0]] * 3, r"not list \[3, 3\]"),
    ],
)
def test_a_matrix_that_is_none_ends_the_run(monkeypatch, matrix, words):
    """Another package's mixing may give one; scaled in silence, it would be another method, or none."""
    config = tiny_config("fedavg", sites=3)
    monkeypatch.setattr(type(config.mixer), "matrix", lambda *_: matrix)
    with pytest.raises(UserError, match=words):
        run(config)


def test_a_site_that_mixes_with_nobody_keeps_what_it_has(monkeypatch):
    matrix = np.array([[0, 0, 0], [0.5, 0.5, 0], [0, 0, 1.0]])
    monkeypatch.setattr(Uniform, "matrix", lambda self, run, state: matrix)
    plan = make_plan("fedbn", mixing="uniform")
    state = round_of(plan, joined(plan), 1, 3, 5)
    assert same(state.shared["site-1"], plan.initial_shared)
    assert [float(state.shared[s]["0.bias"][0]) for s in ("site-2", "site-3")] == [2.0, 5.0]
