"""Logits and features of a pass."""

import pytest
import torch
from torch import nn

from medpfl.core.errors import UserError
from medpfl.models import with_features


class Net(nn.Module):
    """Doubles x, and classifies that; its other layer is not come to."""

    def __init__(self):
        super().__init__()
        self.head, self.idle = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, x):
        return (self.head(2 * x),)


def test_features_are_what_the_layer_is_given():
    model, x = Net(), torch.randn(4, 2)
    output, features = with_features(model, model.head, x)
    assert torch.equal(features, 2 * x)
    assert torch.equal(output, model.head(2 * x))
    assert not model.head._forward_pre_hooks


def test_a_layer_that_is_called_by_keyword_is_heard():
    model, x = Net(), torch.randn(4, 2)
    model.forward = lambda x: model.head(input=3 * x)
    assert torch.equal(with_features(model, model.head, x)[1], 3 * x)


def test_of_several_calls_the_last_one_counts():
    model, x = Net(), torch.randn(4, 2)
    model.forward = lambda x: model.head(model.head(x)[:, :2])
    assert torch.equal(with_features(model, model.head, x)[1], model.head(x)[:, :2])


@pytest.mark.parametrize(
    ("layer", "x"), [("idle", torch.randn(4, 2)), ("head", torch.randn(4, 5, 2))], ids=["not come to", "several rows"]
)
def test_what_hands_no_row_of_features_is_said(layer, x):
    model = Net()
    with pytest.raises(UserError, match="Net hands its last linear layer no row of features for each image"):
        with_features(model, getattr(model, layer), x)
    assert not model.head._forward_pre_hooks
