import copy
import math

import pytest
import torch
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.layers import classification_layer, weighted_layers
from medpfl.models import build_model, logits
from medpfl.models.bag_attention import BagAttention


class ReversedTrunk(nn.Module):
    """A trunk whose last registered linear layer is the first that is used."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.first = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.first(x.flatten(1)))


class Tied(nn.Module):
    """A trunk that holds its last linear layer twice."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.alias = self.fc

    def forward(self, x):
        return self.alias(x.flatten(1))


def trunk(name, channels=1):
    torch.manual_seed(1)
    return build_model(name, in_channels=channels, num_classes=3, image_size=28)


@pytest.fixture(params=["resnet32", "vit-tiny", "lenet5"])
def network(request):
    return trunk(request.param)


def test_hand_computed():
    """Features 0 and ln 3, hidden 1: the scores are w tanh(v h) sigmoid(u h), the weights their softmax."""
    model = BagAttention(nn.Sequential(nn.Flatten(), nn.Linear(1, 2)), hidden=1)
    with torch.no_grad():
        model.attention_v.weight.fill_(1)
        model.attention_u.weight.fill_(1)
        model.attention_w.weight.fill_(math.log(3) / 0.6)
        model.head.weight.copy_(torch.tensor([[1.0], [-2.0]]))
        model.head.bias.copy_(torch.tensor([0.0, 1.0]))
    x = torch.tensor([0.0, math.log(3)]).reshape(1, 2, 1, 1, 1)
    # tanh(ln 3) = 4 / 5 and sigmoid(ln 3) = 3 / 4: the second score is ln 3, and its weight 3 / 4.
    torch.testing.assert_close(model.attention_weights(x), torch.tensor([[0.25, 0.75]]))
    pooled = 0.75 * math.log(3)
    torch.testing.assert_close(model(x), torch.tensor([[pooled, 1 - 2 * pooled]]))


def test_order_of_slices_does_not_matter(network):
    model, order = BagAttention(network).eval(), [2, 0, 3, 1]
    x = torch.randn(2, 4, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(x[:, order]), atol=1e-5, rtol=1e-4)
        weights = model.attention_weights(x)
        torch.testing.assert_close(weights[:, order], model.attention_weights(x[:, order]), atol=1e-5, rtol=1e-4)
    assert weights.shape == (2, 4)
    assert (weights > 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(2))


def test_bag_of_one_slice_is_the_trunk(network):
    alone = copy.deepcopy(network).eval()
    model = BagAttention(network).eval()
    x = torch.randn(3, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(model(x.unsqueeze(1)), logits(alone(x)))
        assert model.attention_weights(x.unsqueeze(1)).tolist() == [[1], [1], [1]]


def test_gradient_flows(network):
    trained_alone = {name for name, p in network.named_parameters() if "norm_cross_attn" not in name}
    model = BagAttention(network)
    output = model(torch.randn(1, 3, 1, 28, 28))
    assert output.shape == (1, 3)
    nn.functional.cross_entropy(output, torch.tensor([1])).backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    attention = {f"attention_{part}.weight" for part in "vuw"}
    assert len(moved) == len(trained_alone) + len(attention)
    assert attention | {"head.weight", "head.bias"} < moved


def test_the_head_is_the_top_layer(network):
    path, layer = classification_layer(network)
    model = BagAttention(network)
    assert isinstance(network.get_submodule(path), nn.Identity)
    assert classification_layer(model) == ("head", layer)
    *_, v, u, w, head = weighted_layers(model)
    assert (v, u, w) == (["attention_v.weight"], ["attention_u.weight"], ["attention_w.weight"])
    assert head == ["head.weight", "head.bias"]
    assert model.attention_v.weight.shape == model.attention_u.weight.shape == (128, layer.in_features)


@pytest.mark.parametrize("make", [Tied, lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 2)))])
def test_wherever_the_layer_lies(make):
    alone, x = make(), torch.randn(2, 1, 1, 2, 2)
    model = BagAttention(copy.deepcopy(alone))
    torch.testing.assert_close(model(x), alone(x[:, 0]))
    assert sorted(model.state_dict()) == [*(f"attention_{p}.weight" for p in "uvw"), "head.bias", "head.weight"]


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 0, 1, 28, 28), (1, 2, 1, 4, 28, 28)])
def test_inputs_that_are_no_bags(shape):
    model = BagAttention(trunk("lenet5"))
    with pytest.raises(UserError, match=r"takes bags \(B, S, C, H, W\) .* got the shape \[" + str(shape[0])):
        model(torch.zeros(shape))


def test_networks_that_do_not_fit():
    with pytest.raises(UserError, match="Sequential has no linear layer"):
        BagAttention(nn.Sequential(nn.Conv2d(1, 2, 1)))
    with pytest.raises(UserError, match=r"ends in its last linear layer.*ReversedTrunk gives .* instead of"):
        BagAttention(ReversedTrunk())(torch.zeros(1, 2, 1, 1, 3))
