"""A round in which others train, at the site that judges what came."""

import pytest
import torch
from test_guard import KEY, Guarded
from tiny import config, plan_of, same, sites_of

from medpfl.core.messages import Failure, Message
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.contract import Contract, admitted, place
from medpfl.site.policy import OPEN, SitePolicy
from medpfl.site.rival import ALONE
from medpfl.site.store import PERSONAL

HALF = {"participation": 0.67, "sites": 3, "rounds": 4}


def guarded(policy=OPEN, folder=None, **fields):
    return Guarded("fedbn", policy, folder, KEY if folder else None, **(HALF | fields)).hello()


def test_numbers_alone_leave_and_the_personal_part_stays_as_it_was(tmp_path):
    site = guarded(alone="yes")
    first = site.ask("follow", 1)
    assert (first.tensors, first.metrics) == ({}, {"validation": None})  # nothing was mixed yet
    site.train(2)
    before = site.site.party.store.get(PERSONAL, 2)
    told = site.ask("follow", 3, site.near())
    assert told.tensors == {}
    assert set(told.metrics) == {"validation"}
    assert told.metrics["validation"]["n"] == 5
    store = site.site.party.store
    assert store.rounds(PERSONAL) == [2]
    assert same(store.get(PERSONAL, 2), before)
    assert max(store.rounds(ALONE)) == 3


def test_what_is_judged_is_the_mix_with_the_sites_own_part():
    """As a site that trains in the round judges it, to the last digit."""
    sites = [guarded(), guarded()]
    for site in sites:
        site.train(1)
    shared = {name: tensor * 1.01 for name, tensor in sites[0].near().items()}
    follows, trains = (site.ask(task, 2, shared) for site, task in zip(sites, ("follow", "train"), strict=True))
    assert follows.metrics["validation"] == trains.metrics["validation"]


def test_it_is_refused_where_every_site_trains_in_every_round():
    site, local = Guarded("fedbn", rounds=4).hello(), Guarded("local", **HALF).hello()
    for reason in (site.refused("follow", 1), local.refused("follow", 1, {})):
        assert reason == "contract: in this run every site trains in each round, and none is asked task 'follow'"


@pytest.mark.parametrize("round_", [0, 5])
def test_there_are_no_more_rounds_to_follow_than_to_train(round_):
    assert guarded().refused("follow", round_) == f"contract: round {round_} of 4 does not exist"


def test_both_in_one_round_are_one_question_too_many():
    site = guarded(SitePolicy(repeats=0))
    site.ask("follow", 1)
    assert "has answered task 'train' of round 1, and repeats 0 times" in site.refused("train", 1)
    other = guarded(SitePolicy(repeats=0))
    other.train(1)
    other.refused("follow", 1)


def test_weights_of_the_servers_choice_are_refused_as_in_training():
    site = guarded(SitePolicy(largest_jump=3))
    far = {name: tensor + 100 for name, tensor in site.federation.initial_shared.items()}
    site.refused("follow", 1, far)
    site = guarded(SitePolicy(largest_jump=3))
    site.train(1)
    site.refused("follow", 2, {name: tensor + 100 for name, tensor in site.near().items()})


def test_nothing_else_may_be_asked_for():
    f_fedap = Guarded("f-fedap", **HALF).hello()
    assert isinstance(f_fedap.ask("follow", 1, asked=["statistics"]), Failure)


def test_it_counts_as_a_round_that_the_data_serve(tmp_path):
    (tmp_path / "e").mkdir()
    site = guarded(SitePolicy(rounds=2), tmp_path / "e")
    assert not isinstance(site.ask("follow", 1), Failure)
    site.train(2)
    assert "2 rounds" in site.refused("follow", 3, site.near())


def test_what_the_contract_says_of_participation_is_agreed():
    whole, some = (Contract(config("fedbn", participation=share)) for share in (1.0, 0.67))
    assert whole.hash != some.hash
    message = Message("follow", 2)
    assert place(some.config, message) == 2
    with pytest.raises(StateError):
        place(whole.config, message)


def test_a_round_is_not_followed_before_the_hello():
    some = Contract(config("fedbn", **HALF))
    site = Guarded("fedbn", **HALF)
    assert "before the hello" in site.refused("follow", 1)
    with site.site.book.open(some) as record, pytest.raises(StateError, match="task 'follow' before the hello"):
        admitted(record, some, Message("follow", 1), 3)


def test_a_damaged_own_part_is_told():
    federation = Federation.of(config("fedbn", **HALF))
    site, model = sites_of(federation)["site-1"], federation.model()
    plan = plan_of(federation)
    hello = Message("prepare", 0, {}, {"split": plan.split.description()})
    for message in (hello, Message("train", 1, plan.initial_shared, {"best_round": 0, "counted": []})):
        assert not isinstance(answer(site, message, model), Failure)
    site.store.keep(PERSONAL, ())
    told = answer(site, Message("follow", 2, plan.initial_shared, {"best_round": 0, "counted": [1]}), model)
    assert told.metrics["restored_round"] == 0
    assert torch.isfinite(torch.tensor(told.metrics["validation"]["accuracy"]))


def test_noise_is_drawn_once_for_a_round_whichever_of_both_is_asked_first(tmp_path):
    """Epsilon counts each round's noise once: a round that was followed too is not trained in anew."""
    noise = {"update_clip": 0.05, "update_noise": 5.0}
    first, second = (guarded(SitePolicy(repeats=3), settings=noise) for _ in range(2))
    first.train(1)
    first.ask("follow", 1)
    second.ask("follow", 1)
    for site in (first, second):
        assert "has answered task 'train' of round 1, and repeats 0 times" in site.refused("train", 1)
        site.train(2)
