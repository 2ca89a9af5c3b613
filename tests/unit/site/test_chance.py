"""Rounds under the same weights that draw anew are equations in the samples' gradients: a hospital gives a few."""

import pytest
import torch
from test_guard import Guarded
from tiny import config
from torch.nn.functional import cosine_similarity, cross_entropy

from medpfl.core.messages import Message
from medpfl.core.seeding import Chance, generator
from medpfl.core.site_data import batch_sizes, scale
from medpfl.engine.federation import Federation
from medpfl.site.chance import DRAWS
from medpfl.site.method import Method
from medpfl.site.policy import HOSPITAL, OPEN, SitePolicy
from medpfl.site.store import MemoryStore

SECRET = bytes(range(32))
ROUNDS = 26


def chance_of(policy, secret, **fields):
    return Federation.of(config(**fields)).site("site-1", MemoryStore(), policy, secret).chance


def test_a_hospital_draws_from_its_secret_for_each_contract():
    own = chance_of(HOSPITAL, SECRET)
    # in the same order another batch size would end in other samples' step, whose difference is one patient's
    others = chance_of(HOSPITAL, SECRET[::-1]), chance_of(HOSPITAL, SECRET, settings={"batch_size": 5})
    assert len({0, own.seed, *(other.seed for other in others)}) == 4
    assert own == chance_of(HOSPITAL, SECRET)  # a round that is asked for again is the same
    assert chance_of(OPEN, SECRET) == chance_of(HOSPITAL, None) == Chance(0)  # the run's: figures repeat


def test_after_a_few_rounds_a_hospitals_draws_come_again():
    def drawn(chance):
        return [chance.order("site-1", round_, "shuffle").initial_seed() for round_ in range(1, 13)]

    own = drawn(chance_of(HOSPITAL, SECRET))
    assert len(set(own)) == DRAWS and own[:DRAWS] == own[DRAWS : 2 * DRAWS]
    assert len(set(drawn(Chance(0)))) == 12
    site = chance_of(HOSPITAL, SECRET)
    assert site.order("site-1", "end", "shuffle").initial_seed() not in own


def test_its_rival_and_its_method_draw_from_the_same():
    site = Federation.of(config("fedblend", alone="yes")).site("site-1", MemoryStore(), HOSPITAL, SECRET)
    assert site.rival.chance == site.chance != Chance(0)
    federation = Federation.of(config("fedvss"))
    site = federation.site("site-1", MemoryStore(), HOSPITAL, SECRET)
    message = Message("train", 1, federation.initial_shared, {"asked": []})
    rounds = Method.of(site, message, federation.model(), 1, kept=lambda name: None, noise=lambda: None).rounds
    assert rounds and {round_.chance for round_ in rounds.values()} == {site.chance}


def asked(policy, **fields):
    """A site, and what it answers to a server that sends the first model in every round."""
    settings = {"lr": 1e-3, "batch_size": 9}
    guarded = Guarded("fedavg", policy=OPEN, rounds=ROUNDS, settings=settings, model="tiny:Wide", **fields)
    guarded.site.party.chance = guarded.federation.site("site-1", MemoryStore(), policy, SECRET).chance
    guarded.hello()
    name, start = "fc2.weight", guarded.federation.initial_shared
    rounds = range(1, ROUNDS + 1)
    return guarded, torch.stack([(start[name] - guarded.train(r).tensors[name]).flatten() for r in rounds]).double()


@pytest.mark.parametrize("augment", ["none", "light"])
def test_rounds_under_the_same_weights_are_few_different_updates(augment):
    _, open_ = asked(OPEN, augment=augment)
    _, own = asked(SitePolicy(own_seed=True), augment=augment)
    assert len(open_.unique(dim=0)) > 4 * DRAWS
    assert len(own.unique(dim=0)) == DRAWS


def solved(policy):
    """How near to each training sample's own gradient an attacker comes who knows the run's seed alone.

    13 samples make a step of 9 and one of 4, which weigh alike.
    """
    guarded, updates = asked(policy)
    weights = torch.zeros(ROUNDS, 13, dtype=torch.float64)
    for round_ in range(1, ROUNDS + 1):
        order, at = torch.randperm(13, generator=generator(0, "site-1", round_, "shuffle")), 0
        for size in batch_sizes(13, 9):
            weights[round_ - 1, order[at : at + size]] = 1 / size
            at += size
    found = torch.linalg.lstsq(weights, updates).solution
    model, data = guarded.federation.model(), guarded.site.data
    model.load_state_dict(guarded.federation.initial_shared)
    own = []
    for x, y in zip(scale(data.images["train"]), data.labels["train"], strict=True):
        model.zero_grad()
        cross_entropy(model(x[None]), y[None]).backward()
        own.append(model.fc2.weight.grad.flatten().clone())
    return cosine_similarity(found, torch.stack(own).double())


def test_rounds_are_solved_for_each_sample_by_who_knows_the_order_alone():
    known = solved(OPEN)
    assert (known > 0.99).all()
    assert solved(SitePolicy(own_seed=True)).max() < 0.99
