"""Weights that come to a site, check by check."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny import Wide, config, imprinting, sites_of

from medpfl.algorithms.start import START as START_WEIGHTS
from medpfl.core.messages import Failure, Message, named
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.arriving import Arriving
from medpfl.site.contract import Record
from medpfl.site.policy import SitePolicy
from medpfl.site.store import MemoryStore

START = {"w": torch.zeros(4)}
COPY = "contract: rows of 'fc1.weight' copy each other"


def arriving(kept=None, first_step=0.0):
    """A site whose steps are counted in lengths of 1, at a limit of two of them a round."""
    return Arriving(
        config=config(rounds=9),
        policy=SitePolicy(largest_jump=2),
        start=START,
        first=START,
        check_shared=lambda shared: None,
        received=lambda round_, model: kept,
        first_step=lambda model: first_step,
    )


def at(length, round_=6):
    return Message("train", round_, {"w": torch.tensor([length, 0.0, 0.0, 0.0])})


def test_a_round_leads_so_far_from_what_came_in_the_last():
    kept, record = {"w": torch.tensor([5.0, 0.0, 0.0, 0.0])}, Record("c", trained=5, step=1.0)
    arriving(kept).require_place(record, at(6.9), None, lambda: None)
    with pytest.raises(StateError, match=r"^contract: what came is 5\.0 times as far .* 2 times is the limit"):
        arriving(kept).require_place(record, at(0.0), None, lambda: None)
    with pytest.raises(
        StateError, match=r"5\.0 times as far .* 3\.4641 times is the limit"
    ):  # three rounds on: 2 * 3 ** 0.5
        arriving(kept).require_place(record, at(0.0, round_=8), None, lambda: None)
    arriving(kept).require_place(record, at(1.6, round_=8), None, lambda: None)


def test_where_that_is_not_kept_the_rounds_before_lead_so_far_from_the_first_model():
    record = Record("c", trained=5, step=1.0)
    arriving().require_place(record, at(5.9, round_=9), None, lambda: None)
    with pytest.raises(StateError, match="6 times is the limit"):  # nine rounds from the start: 2 * 9 ** 0.5
        arriving().require_place(record, at(6.1, round_=9), None, lambda: None)


def test_a_server_that_leaves_a_site_out_for_long_leads_no_further():
    """Of a contract of many rounds the last may be asked after the first."""
    record, long = Record("c", trained=1, step=1.0), replace(arriving(START), config=config(rounds=1_000_000))
    long.require_place(record, at(7.9, round_=1_000_000), None, lambda: None)
    with pytest.raises(StateError, match="8 times is the limit"):
        long.require_place(record, at(8.1, round_=1_000_000), None, lambda: None)


@pytest.mark.parametrize("step", [0.0, float("nan")])
def test_without_a_length_to_compare_with_nothing_comes(step):
    with pytest.raises(StateError, match="largest_jump"):
        arriving(first_step=step).require_place(Record("c"), at(1e-3), None, lambda: None)


def refused(site, message, model):
    reply = answer(site, message, model)
    return reply.reason if isinstance(reply, Failure) else "it was answered"


def begun(policy, algorithm="fedavg", **fields):
    """A guarded site after its hello, and what it and its messages are made of."""
    federation = Federation.of(config(algorithm, model="tiny:Wide", rounds=5, **fields))
    site, model = federation.guarded(sites_of(federation)["site-1"], policy=policy), federation.model()
    hello = answer(site, Message("prepare", 0, {}, {"split": federation.split.description()}), model)
    assert not isinstance(hello, Failure)
    return federation, site, model


def test_from_round_to_round_the_site_knows_what_came_in_the_last():
    federation, site, model = begun(SitePolicy(largest_jump=3))
    start = came = federation.initial_shared
    for round_ in (1, 2, 3):
        update = answer(site, Message("train", round_, came), model)
        came = {name: tensor.clone() for name, tensor in update.tensors.items()}
    step = site.book.read(site.contract).step
    away = {name: tensor.clone() for name, tensor in start.items()}
    away["fc2.bias"][0] += 4 * step  # of four rounds from the first model it would be less than their six
    assert "3 times is the limit" in refused(site, Message("train", 4, away), model)
    assert not isinstance(answer(site, Message("train", 4, came), model), Failure)


@pytest.mark.parametrize("round_", [1, 2])
def test_rows_that_copy_each_other_are_refused_in_every_round(round_):
    federation, site, model = begun(SitePolicy(copied_rows=0.1))
    if round_ == 2:
        assert not isinstance(answer(site, Message("train", 1, federation.initial_shared), model), Failure)
    assert refused(site, Message("train", round_, imprinting()), model).startswith(COPY)


def test_and_where_a_control_leads_to_them():
    federation, site, model = begun(SitePolicy(copied_rows=0.1), "scaffold")
    start = federation.initial_shared
    assert not isinstance(answer(site, Message("train", 1, start), model), Failure)
    there = imprinting()
    control = {f"control/{name}": torch.zeros_like(tensor) for name, tensor in start.items()}
    control["control/fc1.weight"] = (start["fc1.weight"] - there["fc1.weight"]) / 0.1  # in a step at a rate of 0.1
    assert refused(site, Message("train", 2, start | control), model).startswith(COPY)


@pytest.mark.parametrize("with_the_message", [True, False])
def test_and_in_start_weights(tmp_path, with_the_message):
    """A process has them from its first message, also where that was refused."""
    save_file(Wide().state_dict() if with_the_message else imprinting(), tmp_path / "first.safetensors")
    federation = Federation.of(config("fedavg", model="tiny:Wide", init=str(tmp_path / "first.safetensors")))
    site = federation.guarded(federation.site("site-1", MemoryStore()), policy=SitePolicy(copied_rows=0.1))
    brought = named(START_WEIGHTS, imprinting()) if with_the_message else {}
    hello = Message("prepare", 0, brought, {"split": federation.split.description()})
    assert refused(site, hello, federation.model()).startswith(COPY)


def test_other_weights_are_taken():
    federation, site, model = begun(SitePolicy(copied_rows=0.1))
    assert not isinstance(answer(site, Message("train", 1, federation.initial_shared), model), Failure)
    assert not isinstance(answer(site, Message("train", 2, dict(Wide().state_dict())), model), Failure)
