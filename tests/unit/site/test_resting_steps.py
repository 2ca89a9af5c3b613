"""On how many patients an update rests goes by what moves the weights: clipped steps, those that fp16 leaves out.

And what no step moves may be of a single image.
"""

from dataclasses import replace

import pytest
import torch
from monai.networks.layers.vector_quantizer import EMAQuantizer
from test_resting import BRIGHTEST, DATA, Plain, order, single
from test_resting import rests_on as weighed
from tiny import Net, config
from torch import nn
from torch.nn.functional import cross_entropy

from medpfl.core.parameters import StateError
from medpfl.models.lora import LoRA, LoRALinear
from medpfl.site.resting import Resting
from medpfl.training.loop import plain_objective, train_epochs


class Loud(Plain):
    """Its last layer has a gradient that is a million times as large, but for the brightest image."""

    def __init__(self, loudness=1e6):
        super().__init__()
        self.loudness = loudness
        self.fc2 = nn.Linear(7, 3)
        with torch.no_grad():
            self.fc2.weight[:, 6] = 0

    def forward(self, x):
        others = (x.flatten(1).sum(1, keepdim=True) != BRIGHTEST).float()
        return self.fc2(torch.cat([self.fc1(x.flatten(1)).tanh(), self.loudness * others], 1))


def rests_on(model, shared=("fc1.weight",), **settings):
    """As many patients as the shared layers move by in an epoch, in batches of one."""
    drawn, loss = order(), plain_objective(model, cross_entropy)
    trainer = config(settings={"lr": 1e-9, "batch_size": 1, **settings}).trainer
    resting = Resting(DATA, drawn, 1)
    with resting.watched(model, shared):
        train_epochs(model, DATA, trainer, 1, drawn, loss)
    return resting.patients()


def test_a_clipped_step_counts_as_much_as_it_moves():
    assert rests_on(Loud()) > 6
    assert rests_on(Loud(), grad_clip=1e-3) == pytest.approx(1, abs=0.01)
    assert rests_on(Plain(), grad_clip=1e-3) > 6


def test_of_a_step_whose_norm_is_infinite_nothing_is_left():
    assert rests_on(Loud(1e25), grad_clip=1e30) == pytest.approx(1, abs=0.01)


def test_a_step_that_overflows_counts_for_nothing():
    assert rests_on(Loud(6e4)) > 6
    assert rests_on(Loud(6e4), precision="fp16") < 4
    assert rests_on(Plain(), precision="fp16") > 6


class Kept(Net):
    """It keeps the last batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(16))

    def forward(self, x):
        if self.training:
            self.kept.copy_(x.flatten(1).mean(0))
        return super().forward(x)


class Quantized(Net):
    """As MONAI's VQVAE: a table of features that no gradient trains."""

    def __init__(self):
        super().__init__()
        self.table = EMAQuantizer(2, 50, 16, decay=0.0)

    def forward(self, x):
        return super().forward(self.table(x.reshape(-1, 16, 1, 1))[0])


@pytest.mark.parametrize(("model", "told"), [(Kept(), False), (Quantized(), False), (Net(), True)])
def test_what_passes_keep_of_their_images_does_not_leave(model, told):
    drawn = order()
    resting, shared = Resting(DATA, drawn, 1), list(model.state_dict())
    with resting.watched(model, shared):
        train_epochs(model, DATA, config().trainer, 1, drawn, plain_objective(model, cross_entropy))
    if told:
        resting.require_many(12)
        return
    with pytest.raises(StateError, match="it cannot be told on how many patients"):
        resting.require_many(12)
    own = [name for name in shared if not name.startswith(("kept", "table"))]
    resting = Resting(DATA, drawn, 1)
    with resting.watched(model, own):  # it may stay at the site
        train_epochs(model, DATA, config().trainer, 1, drawn, plain_objective(model, cross_entropy))
    resting.require_many(12)


class Adapted(Plain):
    """Of the features that its adapter meets the first is the brightest image's alone, and by it alone A goes."""

    def __init__(self, reads):
        super().__init__()
        self.fc2 = LoRALinear(nn.Linear(7, 3), LoRA(2, 2))
        for layer in (self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias):
            layer.requires_grad_(False)
        with torch.no_grad():
            self.fc2.lora_a.zero_()[:, reads] = 1

    def forward(self, x):
        bright = (x.flatten(1).sum(1, keepdim=True) == BRIGHTEST).float()
        return self.fc2(torch.cat([bright, self.fc1(x.flatten(1)).tanh()], 1))


@pytest.mark.parametrize(("reads", "few"), [(slice(0, 1), True), (slice(1, 7), False)])
def test_an_adapters_second_matrix_rests_on_whom_the_first_lets_through(reads, few):
    assert (rests_on(Adapted(reads), shared=("fc2.lora_a", "fc2.lora_b")) < 2) == few


def test_a_bias_rests_on_those_too_for_whom_the_layers_input_is_nothing():
    """The others are answered rightly and surely: the last bias changes by the label of the one who is not there."""

    class Sure(Plain):
        def forward(self, x):
            there = (x.flatten(1).sum(1, keepdim=True) != BRIGHTEST).float()
            return self.fc2(1e6 * there.expand(-1, 6))

    model = Sure()
    model.fc2.weight.data.fill_(0)
    every = {part: torch.zeros_like(of) for part, of in DATA.labels.items()}
    data = replace(DATA, labels=every)
    weigh = lambda x, y: torch.where(single(x, y) > 0, 1.0, 1e-6)  # noqa: E731
    assert weighed(data, weigh, model, shared=("fc2.weight", "fc2.bias")) < 1.1
    assert weighed(data, weigh, model, shared=("fc2.weight",)) > 6
