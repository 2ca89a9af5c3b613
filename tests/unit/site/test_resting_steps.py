"""On how many patients an update rests goes by the steps that are taken: clipped, or left out where fp16 overflows."""

import pytest
import torch
from test_resting import BRIGHTEST, DATA, Plain, order
from tiny import config
from torch import nn
from torch.nn.functional import cross_entropy

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


def rests_on(model, **settings):
    """As many patients as ``fc1`` moves by in an epoch, in batches of one."""
    drawn, loss = order(), plain_objective(model, cross_entropy)
    trainer = config(settings={"lr": 1e-9, "batch_size": 1, **settings}).trainer
    resting = Resting(DATA, drawn, 1)
    with resting.watched(model, ("fc1.weight",)):
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
