"""Two networks that predict together: the weighted mean of their probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from medpfl.models.outputs import logits

_WEIGHT = "blend_weight"


class Blend(nn.Module):
    """Gives log((1 - w) softmax(a(x)) + w softmax(b(x))), whose softmax is the mean itself.

    A sample for which b has no finite output is a's alone.

    Args:
        a: a classifier; its output is (B, classes).
        b: another of the same output.
        weight: w in [0, 1], the second's.
    """

    def __init__(self, a: nn.Module, b: nn.Module, weight: float = 0.0):
        super().__init__()
        self.blend_a, self.blend_b = a, b
        self.register_buffer(_WEIGHT, torch.tensor(weight, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """(B, classes)."""
        a, b = log_softmax(logits(self.blend_a(x)), 1), log_softmax(logits(self.blend_b(x)), 1)
        weight = self.blend_weight.clamp(1e-12, 1 - 1e-12)
        mean = torch.logaddexp(a.double() + torch.log1p(-weight), b.double() + weight.log()).to(a.dtype)
        return torch.where(b.isnan().any(1, keepdim=True), a, mean)


def blended(a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
    """The state of a :class:`Blend` of two networks, from their states."""
    state = {f"blend_a.{name}": tensor for name, tensor in a.items()}
    state |= {f"blend_b.{name}": tensor for name, tensor in b.items()}
    return {**state, _WEIGHT: torch.tensor(weight, dtype=torch.float64)}


def is_blend(state: Mapping[str, Any]) -> bool:
    """Whether a state is a :class:`Blend`'s."""
    return _WEIGHT in state and any(name.startswith("blend_a.") for name in state)


def restored(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The network with a state: the model itself, or a :class:`Blend` of it and a copy of it.

    Args:
        model: of the architecture, on the device; its values are replaced.
        state: its own, or that of :func:`blended`.
    """
    found: nn.Module = model
    if is_blend(state):
        device = next(model.parameters()).device
        found = Blend(model, deepcopy(model)).to(device)
    found.load_state_dict(state)
    return found
