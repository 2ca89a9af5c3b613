"""A blend of two networks: its probabilities, its state, and what a network's state becomes."""

import math

import numpy as np
import pytest
import torch
from tiny import Net
from torch import nn

from medpfl.models.blend import Blend, blended, is_blend, restored
from medpfl.tasks.evaluation import mixed


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_its_probabilities_are_the_weighted_mean(weight):
    a, b, x = Net().eval(), Net().eval(), torch.randn(5, 1, 4, 4)
    found = Blend(a, b, weight)(x).softmax(1)
    torch.testing.assert_close(found, (1 - weight) * a(x).softmax(1) + weight * b(x).softmax(1))


def test_a_state_says_which_it_is():
    a, b, x = Net().eval(), Net().eval(), torch.randn(5, 1, 4, 4)
    both = blended(a.state_dict(), b.state_dict(), 0.25)
    assert is_blend(both)
    assert not is_blend(a.state_dict())
    torch.testing.assert_close(restored(Net(), both).eval()(x), Blend(a, b, 0.25)(x))
    torch.testing.assert_close(restored(Net(), a.state_dict()).eval()(x), a(x))


def test_impossible_classes_do_not_make_it_infinite():
    a, b = Net().eval(), Net().eval()
    with torch.no_grad():
        a.fc2.bias.copy_(torch.tensor([0.0, -1e4, 0.0]))
        b.fc2.bias.copy_(torch.tensor([0.0, -1e4, 0.0]))
    assert bool(torch.isfinite(Blend(a, b, 0.5)(torch.randn(2, 1, 4, 4))).all())


class Says(nn.Module):
    """The same output whatever comes."""

    def __init__(self, output):
        super().__init__()
        self.output = nn.Parameter(torch.tensor(output))

    def forward(self, x):
        return self.output


def test_where_one_gives_no_number_it_is_the_others_alone():
    """Sample by sample: of the first two samples one network has a class that is no number; the third is of both."""
    a = [[1.0, torch.nan], [2.0, 2.0], [0.0, 0.0]]
    b = [[math.log(3), 0.0], [torch.nan, 0.0], [math.log(3), 0.0]]
    found = Blend(Says(a), Says(b), 0.5)(torch.zeros(3, 1)).softmax(1)
    torch.testing.assert_close(found, torch.tensor([[3 / 4, 1 / 4], [1 / 2, 1 / 2], [5 / 8, 3 / 8]]))


def test_classes_are_those_of_a_pixel():
    """Two pixels: (1/2, 1/2) and (3/4, 1/4) of one network, (3/4, 1/4) and (1/2, 1/2) of the other, which has 3/4."""
    a, b = [[[0.0, math.log(3)], [0.0, 0.0]]], [[[math.log(3), 0.0], [0.0, 0.0]]]
    found = Blend(Says(a), Says(b), 0.75)(torch.zeros(1, 1)).softmax(1)
    torch.testing.assert_close(found, torch.tensor([[[11 / 16, 9 / 16], [5 / 16, 7 / 16]]]))


def test_independent_outputs_have_the_log_odds_of_the_mean():
    """1/2 and 3/4 of two networks, the second's weight a quarter: 9/16, and as log-odds log(9/7)."""
    found = Blend(Says([[0.0, 0.0]]), Says([[math.log(3), 0.0]]), 0.25, sigmoid=True)(torch.zeros(1, 1))
    torch.testing.assert_close(found, torch.tensor([[math.log(9 / 7), 0.0]]))


def test_a_case_of_which_one_output_is_no_number_has_the_other_network_for_all():
    """As its probabilities are joined where they are tested (:func:`medpfl.tasks.evaluation.mixed`)."""
    a, b = [[torch.nan, 2.0], [0.0, 0.0]], [[1.0, -1.0], [math.log(3), 0.0]]
    blend = Blend(Says(a), Says(b), 0.25, sigmoid=True)(torch.zeros(2, 1))
    torch.testing.assert_close(blend, torch.tensor([[1.0, -1.0], [math.log(9 / 7), 0.0]]))
    one, two = ((torch.tensor(scores).sigmoid().double().numpy(), np.zeros((2, 2))) for scores in (a, b))
    assert blend.sigmoid().tolist() == pytest.approx(mixed(one, two, 0.25)[0])
