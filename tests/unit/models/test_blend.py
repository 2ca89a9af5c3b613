"""A blend of two networks: its probabilities, its state, and what a network's state becomes."""

import pytest
import torch
from tiny import Net

from medpfl.models.blend import Blend, blended, is_blend, restored


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
