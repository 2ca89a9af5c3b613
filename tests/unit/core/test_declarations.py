"""What a declaration says before there is a model, and what it leaves to the names of one."""

import pytest
import torch
from tiny import Wide
from torch import nn

from medpfl.core.declarations import (
    AllButAdaptersAndTop,
    BelowTop,
    Heads,
    TopLayers,
    counts_layers,
    parse_declaration,
    personal_heads,
)
from medpfl.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("heads:0", Heads(0)),
        ("heads:1", Heads(1)),
        ("heads:0.2+top:1+heads:0.6+heads:0.4", Heads(0.6)),
        ("batch-norm+top:1", None),
    ],
)
def test_of_several_shares_of_heads_the_largest_is_personal(text, heads):
    assert personal_heads(parse_declaration(text)) == heads


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("top:1", True),
        ("below-top:2", True),
        ("batch-norm+below-top:1", True),
        ("batch-norm", False),
        ("heads:0.5+modules:fc", False),
    ],
)
def test_top_and_below_top_are_said_by_the_order_of_layers(text, counts):
    assert counts_layers(parse_declaration(text)) is counts


def test_a_number_of_layers_is_of_decimal_digits():
    with pytest.raises(UserError, match="unknown personal part 'top:²'"):
        parse_declaration("top:²")


@pytest.mark.parametrize(("count", "below"), [(1, ("fc0", "fc1")), (2, ("fc0",))])
def test_of_three_layers_so_many_nearest_the_output_are_the_top_and_the_others_lie_below(count, below):
    parts = {f"{layer}.{name}" for layer in below for name in ("weight", "bias")}
    assert set(BelowTop(count).personal(Wide())) == parts
    assert set(TopLayers(count).personal(Wide())) == set(Wide().state_dict()) - parts


class OutputFirst(nn.Module):
    """Registers its output first, and its other layer with an adapter."""

    def __init__(self):
        super().__init__()
        self.out, self.into = nn.Linear(4, 3), nn.Linear(16, 4)
        self.into.lora_a = nn.Parameter(torch.zeros(1, 16))

    def forward(self, x):
        return self.out(self.into(x))


def test_layers_are_counted_in_the_way_of_the_inputs():
    model, x = OutputFirst(), torch.zeros(1, 16)
    assert set(TopLayers(1).personal(model, x)) == {"out.weight", "out.bias"}
    assert set(BelowTop(1).personal(model, x)) == {"into.weight", "into.bias", "into.lora_a"}
    assert set(AllButAdaptersAndTop().personal(model, x)) == {"into.weight", "into.bias"}
