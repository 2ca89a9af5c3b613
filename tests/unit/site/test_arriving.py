"""Weights that come to a site, check by check."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny import Wide, config, imprinting, sites_of

from medpfl.algorithms.start import START as START_WEIGHTS
from medpfl.core.messages import Failure, Message, named
from medpfl.core.parameters import StateError, distance
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.arriving import Arriving
from medpfl.site.contract import Record
from medpfl.site.method import Method
from medpfl.site.policy import SitePolicy
from medpfl.site.store import MODEL, MemoryStore

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
    kept, record = (5, {"w": torch.tensor([5.0, 0.0, 0.0, 0.0])}), Record("c", trained=5, step=1.0)
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
    record, long = Record("c", trained=1, step=1.0), replace(arriving((1, START)), config=config(rounds=1_000_000))
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


def test_a_short_update_does_not_narrow_the_next_limit():
    """The longest so far counts: near the end of training steps are short."""
    federation, site, model = begun(SitePolicy(largest_jump=10))
    update = answer(site, Message("train", 1, federation.initial_shared), model)
    step = site.book.read(site.contract).step
    site.party.config = site.party.config.model_copy(update={"settings": {"lr": 1e-3, "batch_size": 4}})
    site.party.config.__dict__.pop("all_settings", None)
    came = {name: tensor.clone() for name, tensor in update.tensors.items()}
    update = answer(site, Message("train", 2, came), model)
    assert 0 < distance(came, update.tensors) < step / 2
    assert site.book.read(site.contract).step == step


def test_what_comes_from_a_later_round_on_does_not_come_before():
    """A control in the first round would lead it away from the contract's first model."""
    federation, site, model = begun(SitePolicy(), "scaffold")
    start = federation.initial_shared
    control = named("control", {name: torch.zeros_like(start[name]) for name, _ in model.named_parameters()})
    words = "contract: 'control' is not as the method has it"
    assert refused(site, Message("train", 1, start | control), model) == words
    update = answer(site, Message("train", 1, start), model)
    came = {name: update.tensors[name].clone() for name in start}
    assert refused(site, Message("validate", 5, came | control), model) == words
    assert not isinstance(answer(site, Message("train", 2, came | control), model), Failure)


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
    led, asked = Message("train", 2, start | control), []
    with pytest.raises(StateError, match="copy each other"):
        site.arriving.require_steps(
            site.book.read(site.contract), led, model, site.channels, site.data, lambda: asked.append(1)
        )
    assert asked  # where steps lead rests on how many the site's data make
    assert refused(site, led, model).startswith(COPY)


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


def test_what_is_refused_for_its_distance_counts_as_a_question():
    """It tells how far it is from what the site has."""
    asked, kept = [], (5, {"w": torch.zeros(4)})
    arriving(kept).require_place(Record("c", trained=5, step=1.0), at(1.9), None, lambda: asked.append(1))
    assert not asked
    with pytest.raises(StateError, match="2 times is the limit"):
        arriving(kept).require_place(Record("c", trained=5, step=1.0), at(2.1), None, lambda: asked.append(1))
    assert asked


@contextmanager
def out_of_memory():
    """Meanwhile no training comes to its end."""

    def fails(*_):
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "train", fails)
        yield patch


def after_rounds(number, algorithm, **fields):
    """A guarded site that has trained so many rounds, and what would come next."""
    federation, site, model = begun(SitePolicy(largest_jump=3), algorithm, **fields)
    came = federation.initial_shared
    for round_ in range(1, number + 1):
        update = answer(site, Message("train", round_, came), model)
        came = {name: update.tensors[name].clone() for name in came}
    return site, model, came


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("fedavg", {}), ("ditto", {}), ("apfl", {}), ("fedavg", {"prior": 1})]
)
def test_after_a_round_that_failed_distances_are_from_what_came(algorithm, settings):
    """And never from a model of the site's own, which a server could find by asking how far it is from many places."""
    site, model, came = after_rounds(2, algorithm, settings=settings)
    with out_of_memory():
        assert "MemoryError" in refused(site, Message("train", 3, came), model)
    round_, kept = site.party.received(2, model)
    assert round_ == 3 and all(torch.equal(kept[name], came[name]) for name in came)
    assert not isinstance(answer(site, Message("train", 3, came), model), Failure)


def test_a_site_that_failed_in_a_late_round_is_not_left_out_for_ever():
    """The first model is further away by then than the limit lets anything come from there."""
    site, model, came = after_rounds(3, "fedavg")
    far = {name: tensor.clone() for name, tensor in came.items()}
    record = site.book.read(site.contract)
    site.book.write(replace(record, step=1e-3 * record.step))  # as after hundreds of rounds of short steps
    with out_of_memory() as failing:
        failing.setattr(Arriving, "require_place", lambda *_: None)
        assert "MemoryError" in refused(site, Message("train", 4, far), model)
    assert not isinstance(answer(site, Message("train", 5, far), model), Failure)


@pytest.mark.parametrize(("asked", "kept"), [(1, 2), (3, 2), (4, 4), (6, 6), (9, 6)])
def test_distances_are_from_the_first_that_came_for_a_round_or_later(asked, kept):
    """Whatever else is kept, such as the best round's; the last of all where that is of an earlier round."""
    site, model, _ = after_rounds(0, "fedavg")
    party, state = site.party, model.state_dict()
    for round_ in (2, 4, 6):
        party.store.put(MODEL, round_, {n: torch.full_like(t, round_) for n, t in state.items()})
    round_, came = party.received(asked, model)
    assert round_ == kept + 1 and all((tensor == kept).all() for tensor in came.values())


def test_a_server_says_rounds_by_numbers():
    assert Message("train", 3, {}, {"best_round": 2}).best_round == 2
    for odd in ("x", -1, 4, 2.0, True, None):
        message = Message("test", 3, {}, {"best_round": odd, "selected_round": odd})
        assert (message.best_round, message.selected_round) == (0, 3)


def test_a_site_that_missed_all_rounds_but_the_first_is_held_to_what_came():
    site, model, came = after_rounds(1, "fedavg")
    with out_of_memory():
        for round_ in (2, 3, 4):
            assert "MemoryError" in refused(site, Message("train", round_, came), model)
    assert site.party.received(1, model)[0] == 4
    away = {name: tensor.clone() for name, tensor in came.items()}
    away["fc2.bias"][0] += 4 * site.book.read(site.contract).step
    assert "3 times is the limit" in refused(site, Message("train", 5, away), model)
    assert not isinstance(answer(site, Message("train", 5, came), model), Failure)


def test_a_round_that_the_server_lost_is_asked_again_and_fails():
    """What came for it is the last that the site has, of the round before its last answer."""
    site, model, came = after_rounds(3, "ditto")
    with out_of_memory():
        assert "MemoryError" in refused(site, Message("train", 2, came), model)
    assert site.party.received(3, model)[0] == 2
    assert not isinstance(answer(site, Message("train", 3, came), model), Failure)


def test_how_far_a_control_leads_is_not_told():
    """It rests on how many steps a site takes, which says how many samples it has."""
    federation, site, model = begun(SitePolicy(largest_jump=3), "scaffold")
    update = answer(site, Message("train", 1, federation.initial_shared), model)
    near = {name: update.tensors[name].clone() for name in federation.initial_shared}
    control = {f"control/{name}": torch.full_like(tensor, 100.0) for name, tensor in near.items()}
    words = "contract: what is added to every step leads more than 3 times as far as this site's own update, and that"
    assert refused(site, Message("train", 2, near | control), model).startswith(words)
