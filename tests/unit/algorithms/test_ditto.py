"""Ditto's own model: its step by hand, and that it is what the site uses."""

import pytest
import torch
from one_sample import TwoWeights, both, config, method, trained, weights
from tiny import config as tiny_config
from tiny import run, same

from medpfl.site.store import MODEL, RECEIVED


def test_a_step_of_the_own_model_by_hand():
    """v = (0, 0), w = (1, -1), lambda = 1: the gradient is (-1/2, 1/2) + (v - w) = (-3/2, 3/2), a step of 0.1 of it."""
    model = TwoWeights(1.0, -1.0)
    done = trained(config("ditto"), model, kept={"ditto": both(0.0, 0.0)})

    assert weights(done.states()["ditto"]) == pytest.approx([0.15, -0.15])


def test_the_common_model_takes_fedavgs_step():
    alone, beside = TwoWeights(1.0, -1.0), TwoWeights(1.0, -1.0)
    trained(config("fedavg"), alone)
    trained(config("ditto"), beside, kept={"ditto": both(0.0, 0.0)})

    assert same(alone.state_dict(), beside.state_dict())


def test_in_its_first_round_the_own_model_begins_as_what_came():
    """v = w: the penalty is 0 at the first step, which is FedAvg's."""
    model = TwoWeights(0.0, 0.0)

    assert weights(trained(config("ditto"), model).states()["ditto"]) == pytest.approx([0.05, -0.05])


def test_a_site_uses_its_own_model_and_nothing_else_before_it_has_one():
    kept = both(2.0, 3.0)

    model = TwoWeights(0.0, 0.0)
    before = method(config("ditto"), model, kept={"ditto": kept}).use(model)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert weights(before) == [0.0, 0.0]
    assert method(config("ditto"), model).use(model) is None


@pytest.mark.parametrize("personal", ["nothing", "batch-norm"])
def test_the_common_models_are_fedavgs_to_the_bit_and_what_is_used_is_not(personal):
    fields = {"personal": personal} if personal != "nothing" else {}
    plain, _ = run(tiny_config("fedavg", **fields))
    ditto, sites = run(tiny_config("ditto", **fields))

    for name, site in sites.items():
        assert same(plain.shared[name], ditto.shared[name])
        used, received = site.store.get(MODEL, 3), site.store.get(RECEIVED, 3)
        assert not same(used, received)
        assert same({k: received[k] for k in ditto.shared[name]}, ditto.shared[name])


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_site_uses_its_own_model_as_the_last_round_left_it(rounds):
    """Validation, selection and test are of v after the round, not of v before it."""
    _, sites = run(tiny_config("ditto", rounds=rounds))

    for site in sites.values():
        assert same(site.store.get(MODEL, rounds), site.store.get("ditto", rounds))
        assert not same(site.store.get(MODEL, rounds), site.store.get(RECEIVED, rounds))


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "optimizer_state": "kept"}], ids=["afresh", "kept"])
def test_the_common_model_is_as_without_the_sites_own(settings):
    """Also where optimizers' states are kept: each of the two models has its own."""
    with_own, without = (run(tiny_config(name, settings=settings))[0] for name in ("ditto", "fedavg"))
    assert same(with_own.shared["site-1"], without.shared["site-1"])
