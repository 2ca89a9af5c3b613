"""Classifies a bag of slices (a patient, a study) with a network for single images, by attention over the slices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medpfl.core.errors import UserError
from medpfl.core.layers import classification_layer
from medpfl.models.outputs import logits


class BagAttention(nn.Module):
    """Gated attention-based multiple-instance pooling.

    Ilse, Tomczak, Welling, Attention-based Deep Multiple Instance Learning, ICML 2018: with the features h_s of slice
    s, the weights are a = softmax over s of w^T (tanh(V h_s) * sigmoid(U h_s)) (equation 9), without biases, and the
    bag's features sum over s of a_s h_s (equation 7).

    The trunk is taken over, not copied: its last linear layer is taken out of it and becomes :attr:`head`, the last
    layer of this one, so that a bag of one slice has the logits that the trunk alone would give.

    Args:
        trunk: a classifier of single images that ends in a linear layer.
        hidden: rows of V and U.

    Shape:
        (B, S, C, H, W), bags of S slices, to logits (B, classes).

    Raises:
        UserError: the trunk has no linear layer; in :meth:`forward`: the input holds no bags, or the trunk does not
            end in its last linear layer.
    """

    def __init__(self, trunk: nn.Module, hidden: int = 128) -> None:
        super().__init__()
        path, head = classification_layer(trunk)
        self.trunk = _without(trunk, path)
        self.attention_v = nn.Linear(head.in_features, hidden, bias=False)
        self.attention_u = nn.Linear(head.in_features, hidden, bias=False)
        self.attention_w = nn.Linear(hidden, 1, bias=False)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of bags."""
        return self.classify(self._features(x))

    def classify(self, features: Tensor) -> Tensor:
        """Logits (B, classes) of bags whose slices have these features (B, S, D)."""
        return self.head(torch.einsum("bs,bsd->bd", self._weights(features), features))

    def attention_weights(self, x: Tensor) -> Tensor:
        """How much each slice counts: (B, S), positive, with the sum 1 over a bag's slices."""
        return self._weights(self._features(x))

    def _features(self, x: Tensor) -> Tensor:
        if x.ndim != 5 or not x.shape[1]:
            raise UserError(
                f"attention over slices takes bags (B, S, C, H, W) of at least one slice, got the shape {list(x.shape)}"
            )
        features = logits(self.trunk(x.flatten(0, 1)))
        if features.shape[1:] != (self.head.in_features,):
            raise UserError(
                f"attention over slices needs a network that ends in its last linear layer; without that layer "
                f"{type(self.trunk).__name__} gives {list(features.shape[1:])} values for a slice instead of "
                f"[{self.head.in_features}]: choose another model, or the pooling mean"
            )
        return features.unflatten(0, x.shape[:2])

    def _weights(self, features: Tensor) -> Tensor:
        gated = torch.tanh(self.attention_v(features)) * torch.sigmoid(self.attention_u(features))
        return self.attention_w(gated).squeeze(-1).softmax(dim=1)


def _without(trunk: nn.Module, path: str) -> nn.Module:
    layer = trunk.get_submodule(path)
    if layer is trunk:
        return nn.Identity()
    for name, module in list(trunk.named_modules(remove_duplicate=False)):
        if module is layer:
            parent, _, attribute = name.rpartition(".")
            setattr(trunk.get_submodule(parent), attribute, nn.Identity())
    return trunk
