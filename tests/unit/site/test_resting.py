"""On how many patients an update rests is measured while it is trained, whatever made few outweigh all others."""

from copy import deepcopy
from dataclasses import replace

import pytest
import tiny
import torch
from test_guard import Guarded
from tiny import Net, images
from torch import nn
from torch.nn.functional import cross_entropy

from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.core.seeding import Chance, Order
from medpfl.core.site_data import SiteLoaders, scale
from medpfl.engine.federation import Federation
from medpfl.site.policy import HOSPITAL, SitePolicy
from medpfl.site.resting import Resting, as_alike
from medpfl.site.store import MemoryStore
from medpfl.site.words import listed
from medpfl.training.loop import plain_objective, train_epochs

TWELVE = SitePolicy(least_patients=12, own_seed=True)


def order():
    return Chance(1, one_order=True).order("site-1", 1, "shuffle")


def rests_on(data, weigh, model=None, epochs=1, extra=0, shared=("fc1.weight",)):
    """After passes over the data of which each sample's loss is multiplied by what ``weigh`` gives for the batch."""
    model, drawn = model or Net(), order()
    resting = Resting(data, drawn, epochs)
    with resting.watched(model, shared):
        for _ in range(epochs):
            for x, y in data.training_batches(4, drawn):
                others = torch.rand(extra, *x.shape[1:])
                labels = torch.cat([y, y.new_zeros(extra)])
                loss = cross_entropy(model(torch.cat([x, others])), labels, reduction="none")
                (loss[: len(y)] * weigh(x, y)).sum().add(loss[len(y) :].sum() * 1e6).backward()
    return resting.patients()


class Plain(nn.Module):
    """Each sample by itself: no batch norm."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.fc2(self.fc1(x.flatten(1)).tanh())


def single(x, y):
    """All but the image that is brightest in all weigh nothing."""
    return (x.flatten(1).sum(1) == BRIGHTEST).float()


DATA = images(train=12)
BRIGHTEST = max(float(x.flatten(1).sum(1).max()) for x, _ in DATA.batches("train", 12))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("extra", [0, 4])
def test_as_how_many_patients_alike_they_weigh(epochs, extra):
    several = rests_on(DATA, lambda x, y: torch.ones(len(y)), Plain(), epochs, extra)
    assert 6 < several <= 12
    assert rests_on(DATA, single, Plain(), epochs, extra) == pytest.approx(1)


def test_wherever_the_images_lie_their_numbers_are_on_the_cpu():
    there = {part: torch.zeros(5, 1, 4, 4, device="meta") for part in DATA.labels}
    labels = {part: torch.zeros(5, dtype=torch.long, device="meta") for part in DATA.labels}
    drawn = order()
    x, _ = next(replace(DATA, images=there, labels=labels).training_batches(4, drawn))
    assert (x.device.type, drawn.batch.device.type) == ("meta", "cpu")


def test_images_count_by_whose_they_are():
    of_one = {part: torch.zeros(DATA.samples(part), dtype=torch.long) for part in DATA.labels}
    assert rests_on(replace(DATA, persons=of_one), lambda x, y: torch.ones(len(y)), Plain()) == pytest.approx(1)


def test_of_loaders_each_sample_of_an_epoch_counts():
    loaders = SiteLoaders(train=list(DATA.batches("train", 4)))
    assert 6 < rests_on(loaders, lambda x, y: torch.ones(len(y)), Plain(), epochs=3) <= 12
    assert rests_on(loaders, single, Plain(), epochs=3) == pytest.approx(1)


def test_the_layer_counts_that_rests_on_the_fewest_of_those_that_are_shared():
    class Gated(Plain):
        """Its second layer has one sample alone."""

        def forward(self, x):
            own = self.fc1(x.flatten(1))
            gate = (x.flatten(1).sum(1, keepdim=True) == BRIGHTEST).float()
            return own[:, :3] + self.fc2(own.tanh() * gate) * gate

    both = ("fc1.weight", "fc2.weight")
    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Gated(), shared=both) == pytest.approx(1)
    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Gated()) > 6
    assert rests_on(DATA, single, Plain(), shared=()) == float("inf")  # all stays at the site


class Timed(Plain):
    """As torch's layers of time have it by default: time first."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.time = steps, nn.LSTM(16, 6)

    def forward(self, x):
        return self.fc2(self.time(x.flatten(1).expand(self.steps, -1, -1))[0][-1])


class Named(Plain):
    """Inputs are given by name, and the output is one number a sample."""

    def forward(self, x):
        first = self.fc1(input=x.flatten(1)).tanh()
        return torch.cat([self.fc2(input=first)[:, :2], self.scale(first)[:, None]], 1)

    def __init__(self):
        super().__init__()
        self.scale = Mean()


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 6))

    def forward(self, x):
        return (x * self.weight).mean(1)


@pytest.mark.parametrize("model", [Timed(4), Timed(8), Timed(5), Named()], ids=["4", "8", "5", "named"])
def test_samples_are_found_however_layers_have_them(model):
    shared = [name for name, _ in model.named_parameters()]
    assert 6 < rests_on(DATA, lambda x, y: torch.ones(len(y)), model, shared=shared) <= 12
    assert rests_on(DATA, single, model, shared=shared) == pytest.approx(1)


def test_where_scales_alone_are_shared_they_are_looked_at():
    class Scaled(Plain):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)

        def forward(self, x):
            return self.fc2(self.norm(self.fc1(x.flatten(1))))

    assert rests_on(DATA, single, Scaled(), shared=("norm.weight", "norm.bias")) == pytest.approx(1)


def test_a_layer_that_is_frozen_in_a_pass_has_no_part_in_it():
    model = Plain()
    model.fc1.requires_grad_(False)
    assert rests_on(DATA, single, model, shared=("fc1.weight",)) == float("inf")
    assert rests_on(DATA, single, model, shared=("fc1.weight", "fc2.weight")) == pytest.approx(1)


def test_parts_of_a_whole_by_hand():
    parts = {(1, 1, 1, 1): 4, (3, 1): 1.6, (5,): 1, (2, 0): 1, (0, 0): float("inf")}
    assert {some: as_alike(torch.tensor(some, dtype=torch.float64)) for some in parts} == pytest.approx(parts)


def test_patients_may_have_any_numbers():
    numbers = {part: 10**12 - torch.arange(DATA.samples(part)) for part in DATA.labels}
    assert 6 < rests_on(replace(DATA, persons=numbers), lambda x, y: torch.ones(len(y)), Plain()) <= 12


def test_a_derivative_that_is_a_thousand_times_as_large_for_one():
    """One unit, and an activation that grows exponentially in it."""

    class Steep(Plain):
        def forward(self, x):
            gate = torch.nn.functional.elu(x.flatten(1).sum(1, keepdim=True) - BRIGHTEST, alpha=1e3).exp()
            return self.fc2(self.fc1(x.flatten(1)).tanh()) * gate

    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Steep()) < 2


@pytest.mark.parametrize("many", [1e6, 1e25, 1e-25, 1e37])
def test_nobody_hides_by_numbers_beyond_what_squares_can_hold(many):
    assert rests_on(DATA, lambda x, y: 1e-30 + many * single(x, y), Plain()) < 1.01


def test_what_is_not_finite_rests_on_nobody():
    assert rests_on(DATA, lambda x, y: 1 + 1e39 * single(x, y), Plain()) == 0


def test_inputs_count_too():
    """Of two samples with the same gradient at the output the larger has more of the weights'."""
    model, drawn = nn.Linear(16, 3), order()
    resting = Resting(DATA, drawn, 1)
    with resting.watched(model, ("weight",)):
        for x, _ in DATA.training_batches(4, drawn):
            (model(x.flatten(1) * torch.where(single(x, None) > 0, 1e6, 1.0)[:, None])).sum().backward()
    assert resting.patients() == pytest.approx(1, abs=0.01)


def test_every_output_counts_and_channels_are_no_samples():
    class Two(Plain):
        """The layer's first output is of all, its second of one alone."""

        def __init__(self):
            super().__init__()
            self.both = Both()

        def forward(self, x):
            of_all, of_one = self.both(x.flatten(1))
            gate = (x.flatten(1).sum(1, keepdim=True) == BRIGHTEST).float()
            return self.fc2(of_all * 1e-6 + of_one * gate)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16, 6))

        def forward(self, x):
            return x @ self.weight, (x @ self.weight).tanh()

    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Two(), shared=("both.weight",)) < 1.1

    class Bags(Plain):
        """Three slices each, and as many channels as samples in a batch."""

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 1)

        def forward(self, x):
            slices = self.conv(x.repeat_interleave(3, 0))
            return self.fc2(self.fc1(slices.mean(1).flatten(1)).unflatten(0, (len(x), 3)).mean(1))

    names = ("conv.weight", "fc1.weight", "fc2.weight")
    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Bags(), shared=names) > 6
    assert rests_on(DATA, single, Bags(), shared=names) == pytest.approx(1)


def test_tables_of_places_are_left_out_and_large_scales_are_not():
    class Placed(Plain):
        def __init__(self):
            super().__init__()
            self.places, self.scales = nn.Embedding(16, 1), nn.LayerNorm(64)

        def forward(self, x):
            own = x.flatten(1) + self.places(torch.arange(16))[:, 0]
            gate = (x.flatten(1).sum(1, keepdim=True) == BRIGHTEST).float()
            return self.fc2(self.fc1(own).tanh()) + self.scales(own.repeat(1, 4) * gate)[:, :3] * gate

    names = ("fc1.weight", "places.weight")
    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Placed(), shared=names) > 6
    more = (*names, "scales.weight")
    assert rests_on(DATA, lambda x, y: torch.ones(len(y)), Placed(), shared=more) == pytest.approx(1)


def test_weights_by_which_one_patient_is_the_update_get_no_answer():
    guarded = Guarded("fedavg", policy=TWELVE, model="tiny:Wide")
    guarded.hello()
    x = scale(guarded.site.data.images["train"]).flatten(1)
    sums = x.sum(1).sort().values
    sent = {name: tensor.clone() for name, tensor in guarded.federation.initial_shared.items()}
    sent["fc0.weight"].fill_(1.0)
    sent["fc0.bias"].fill_(-float(sums[-2] + sums[-1]) / 2)  # its units are active for the brightest image alone
    guarded.train(1)
    assert guarded.refused("train", 2, sent).startswith("policy: few patients have nearly all of this update")
    guarded.train(2)


def test_passes_between_batches_are_not_looked_at():
    model, drawn = Plain(), order()
    resting = Resting(DATA, drawn, 1)
    trainer = tiny.config().trainer
    with resting.watched(model, ("fc1.weight",)):
        train_epochs(model, DATA, trainer, 1, drawn, plain_objective(model, cross_entropy))
        before = resting.patients()
        cross_entropy(model(torch.rand(4, 1, 4, 4) * 1e6), torch.zeros(4, dtype=torch.long)).backward()
    assert resting.patients() == before > 6


def test_a_copy_of_the_model_is_not_looked_at():
    model, resting = Plain(), Resting(DATA, Order(), 1)
    with resting.watched(model, ("fc1.weight",)):
        copied = deepcopy(model)
        resting._order.batch = torch.arange(12)
        x, y = next(DATA.batches("train", 12))
        model(x)
        cross_entropy(copied(x), y).backward()
    assert resting.patients() == float("inf")
    assert not model._forward_hooks and not model.fc1._forward_hooks


def test_layers_may_be_called_one_by_one():
    class Parts(Plain):
        def forward(self, x):
            raise NotImplementedError

    model, drawn = Parts(), order()
    resting = Resting(DATA, drawn, 1)
    with resting.watched(model, ("fc1.weight",)):
        for x, y in DATA.training_batches(4, drawn):
            cross_entropy(model.fc2(model.fc1(x.flatten(1)).tanh()), y).backward()
    assert 6 < resting.patients() <= 12


def test_an_update_of_which_nobody_can_say_does_not_leave():
    class Timed(Plain):
        """Samples are its third dimension."""

        def forward(self, x):
            return self.fc2(self.fc1(x.flatten(1).expand(5, 3, -1, -1)).tanh()).mean((0, 1))

    model, drawn = Timed(), order()
    resting = Resting(DATA, drawn, 1)
    with resting.watched(model, ("fc1.weight", "fc2.weight")):
        for x, y in DATA.training_batches(4, drawn):
            cross_entropy(model(x), y).backward()
    with pytest.raises(StateError, match="it cannot be told on how many patients") as refused:
        resting.require_many(12)
    assert listed(str(refused.value), set()) == str(refused.value)


def test_an_update_of_few_does_not_leave(monkeypatch):
    guarded = Guarded(policy=TWELVE)
    guarded.hello()
    guarded.train(1)
    monkeypatch.setattr(Resting, "patients", lambda self: 2.9)
    said = guarded.refused("train", 2)
    assert said.startswith("policy: few patients have nearly all of this update") and listed(said, set()) == said
    with pytest.raises(StateError, match="fewer than a quarter of 12 alike"):
        Resting(DATA, Order(), 1).require_many(12)


def test_a_simulation_looks_at_nothing_and_a_hospital_at_all():
    federation = Guarded().federation
    for policy, least in [(SitePolicy(), 0), (HOSPITAL, 20)]:
        assert federation.site("site-1", MemoryStore(), policy, bytes(32)).least == least


def test_samples_made_of_a_sites_own_are_their_owners():
    """One sample's copies, a million times as heavy, are nearly all of the update; others' are nobody's here."""

    def patients(beside, whose):
        model, drawn = Plain(), order()
        resting = Resting(DATA, drawn, 1, beside)
        with resting.watched(model, ("fc1.weight",)):
            for x, y in DATA.training_batches(4, drawn):
                loss = cross_entropy(model(torch.cat([x, x])), torch.cat([y, y]), reduction="none")
                loss[: len(y)].sum().add(1e6 * (loss[len(y) :] * whose(x, y)).sum()).backward()
        return resting.patients()

    assert patients(1, single) < 1.01
    assert patients(1, lambda x, y: 1.0) > 6
    assert patients(0, single) > 6


def test_and_so_are_fedvsss_virtual_samples():
    federation = Federation.of(tiny.config("fedvss", settings={"confident": 1.0, "adversarial": 0.1}))
    site = tiny.sites_of(federation)["site-1"]
    model = federation.model()
    method = site._method(Message("train", 1, federation.initial_shared), model, 1, ("update", 1), 0)
    method.begin()
    assert method.own_beside == 2


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("of", [DATA, SiteLoaders(train=list(DATA.batches("train", 4)))], ids=["tensors", "loaders"])
def test_and_what_fedreg_takes_back_after_a_step_by_itself(of, gated):
    """Its pseudo data of one image alone go through a gate that no image of the site's own goes through."""

    brightest = next(x[single(x, None) > 0] for x, _ in DATA.batches("train", 12)).flatten(1)

    class Gated(Plain):
        def forward(self, x):
            far = (x.flatten(1) - brightest).abs().amax(1, keepdim=True)
            moved = (far > 2) & (far < 3.05)  # ten steps of 0.3
            first = self.fc1(x.flatten(1)).tanh()  # the same value, and a derivative that is a million times as large
            return self.fc2(first + (first - first.detach()) * torch.where(moved & gated, 1e6, 0.0))

    federation = Federation.of(tiny.config("fedreg", settings={"batch_size": 4, "pseudo_size": 0.3}))
    site = replace(tiny.sites_of(federation)["site-1"], data=of)
    model, drawn = Gated(), order()
    method = site._method(Message("train", 1, federation.initial_shared), model, 1, ("update", 1), 0)
    method.begin()
    resting = Resting(of, drawn, 3)
    with resting.watched(model, ("fc1.weight",)):
        method.train(model, of, 3, drawn)
    assert (resting.patients() < 1.5) is gated
