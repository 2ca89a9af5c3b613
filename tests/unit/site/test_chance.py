"""Who knows the order of a site's samples solves rounds for each sample's gradient; a hospital's order is its own."""

import torch
from test_guard import Guarded
from tiny import config
from torch.nn.functional import cosine_similarity, cross_entropy

from medpfl.core.messages import Message
from medpfl.core.seeding import generator
from medpfl.core.site_data import batch_sizes, scale
from medpfl.engine.federation import Federation
from medpfl.site.method import Method
from medpfl.site.policy import HOSPITAL, OPEN, SitePolicy
from medpfl.site.store import MemoryStore

SECRET = bytes(range(32))
ROUNDS = 26


def seed_of(policy, secret, **fields):
    return Federation.of(config(**fields)).site("site-1", MemoryStore(), policy, secret).seed


def test_a_hospitals_seed_is_its_own_and_another_for_each_contract():
    own = seed_of(HOSPITAL, SECRET)
    assert own not in (0, seed_of(HOSPITAL, SECRET[::-1]), seed_of(HOSPITAL, SECRET, settings={"batch_size": 5}))
    assert own == seed_of(HOSPITAL, SECRET)  # a round that is asked for again is the same
    assert seed_of(OPEN, SECRET) == seed_of(HOSPITAL, None) == 0  # the run's: figures repeat


def test_its_rival_and_its_method_draw_from_the_same():
    site = Federation.of(config("fedblend", alone="yes")).site("site-1", MemoryStore(), HOSPITAL, SECRET)
    assert site.rival.seed == site.seed != 0
    federation = Federation.of(config("fedvss"))
    site = federation.site("site-1", MemoryStore(), HOSPITAL, SECRET)
    message = Message("train", 1, federation.initial_shared, {"asked": []})
    rounds = Method.of(site, message, federation.model(), 1, kept=lambda name: None, noise=lambda: None).rounds
    assert rounds and {round_.seed for round_ in rounds.values()} == {site.seed}


def solved(policy):
    """How near to each training sample's own gradient an attacker comes who knows the run's seed alone.

    The server sends the first model in every round. 13 samples make a step of 9 and one of 4, which weigh alike.
    """
    settings = {"lr": 1e-3, "batch_size": 9}
    guarded = Guarded("fedavg", policy=OPEN, rounds=ROUNDS, settings=settings, model="tiny:Wide")
    guarded.site.party.seed = guarded.federation.site("site-1", MemoryStore(), policy, SECRET).seed
    guarded.hello()
    name, start, data = "fc2.weight", guarded.federation.initial_shared, guarded.site.data
    updates, weights = [], torch.zeros(ROUNDS, 13, dtype=torch.float64)
    for round_ in range(1, ROUNDS + 1):
        updates.append((start[name] - guarded.train(round_).tensors[name]).flatten())
        order, at = torch.randperm(13, generator=generator(0, "site-1", round_, "shuffle")), 0
        for size in batch_sizes(13, 9):
            weights[round_ - 1, order[at : at + size]] = 1 / size
            at += size
    found = torch.linalg.lstsq(weights, torch.stack(updates).double()).solution
    model = guarded.federation.model()
    model.load_state_dict(start)
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
