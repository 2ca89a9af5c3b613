"""Rounds in other orders under the same weights are equations in the samples' gradients: a hospital gives one."""

import pytest
import torch
from test_guard import Guarded
from tiny import config, images
from torch.nn.functional import cosine_similarity, cross_entropy

from medpfl.core.masked_data import MaskedVolumes
from medpfl.core.messages import Message
from medpfl.core.seeding import Chance, changes_of, generator
from medpfl.core.site_data import batch_sizes, scale
from medpfl.engine.federation import Federation
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


def test_a_hospital_has_one_order_and_changes_samples_anew():
    def drawn(chance, of):
        return [of(chance.order("site-1", when, "shuffle")).initial_seed() for when in (1, 2, 3, "end")]

    own, open_ = chance_of(HOSPITAL, SECRET), Chance(0)
    orders = drawn(own, lambda order: order)
    assert orders[0] == orders[1] == orders[2] != orders[3]
    assert len({*orders, *drawn(own, changes_of)}) == 5
    assert len(set(drawn(open_, lambda order: order))) == 4
    assert drawn(open_, changes_of) == drawn(open_, lambda order: order)


@pytest.mark.parametrize(("samples", "batch_size", "sizes"), [(34, 32, [17, 17]), (61, 20, [21, 20, 20]), (5, 8, [5])])
def test_its_batches_are_alike_in_size(samples, batch_size, sizes):
    order = chance_of(HOSPITAL, SECRET).order("site-1", 1, "shuffle")
    assert [len(y) for _, y in images(train=samples).training_batches(batch_size, order)] == sizes
    volume, mask = torch.zeros(1, 2, 4, 4, dtype=torch.float16), torch.zeros(2, 4, 4, dtype=torch.uint8)
    data = MaskedVolumes({"train": [volume] * samples}, {"train": [mask] * samples}, (2, 4, 4), patches=1)
    assert [len(y) for _, y in data.training_batches(batch_size, order)] == sizes


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


def test_rounds_under_the_same_weights_have_one_update_but_for_what_is_done_to_samples():
    _, open_ = asked(OPEN)
    _, own = asked(SitePolicy(own_seed=True))
    assert len(open_.unique(dim=0)) > ROUNDS / 2
    assert len(own.unique(dim=0)) == 1
    assert len(asked(SitePolicy(own_seed=True), augment="light")[1].unique(dim=0)) == ROUNDS


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
