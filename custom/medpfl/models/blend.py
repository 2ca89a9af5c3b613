"""Two networks that predict together: the weighted mean of their probabilities, for a sample, pixel or voxel."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from medpfl.models.outputs import logits

_WEIGHT, _SIGMOID = "blend_weight", "blend_sigmoid"


class Blend(nn.Module):
    """Gives log((1 - w) softmax(a(x)) + w softmax(b(x))), whose softmax is the mean itself.

    Where outputs are independent, it gives the log-odds of (1 - w) sigmoid(a(x)) + w sigmoid(b(x)). Where one of the
    two gives no number, it is the other's alone.

    Args:
        a: a network; its output is (B, classes, ...).
        b: another of the same output.
        weight: w in [0, 1], the second's.
        sigmoid: outputs are independent.
    """

    def __init__(self, a: nn.Module, b: nn.Module, weight: float = 0.0, *, sigmoid: bool = False):
        super().__init__()
        self.blend_a, self.blend_b = a, b
        self.register_buffer(_WEIGHT, torch.tensor(weight, dtype=torch.float64))
        self.register_buffer(_SIGMOID, torch.tensor(True) if sigmoid else None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, classes, ...)."""
        a, b = logits(self.blend_a(x)), logits(self.blend_b(x))
        if self.blend_sigmoid is not None:
            mean = self._mean(logsigmoid(a), logsigmoid(b)) - self._mean(logsigmoid(-a), logsigmoid(-b))
        else:
            a, b = log_softmax(a, 1), log_softmax(b, 1)
            mean = self._mean(a, b)
        no_a, no_b = (scores.isnan().any(1, keepdim=True) for scores in (a, b))
        return torch.where(no_b, a, torch.where(no_a, b, mean.to(a.dtype)))

    def _mean(self, a: Tensor, b: Tensor) -> Tensor:
        """Of logarithms, in float64."""
        weight = self.blend_weight.clamp(1e-12, 1 - 1e-12)
        return torch.logaddexp(a.double() + torch.log1p(-weight), b.double() + weight.log())


def blended(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: float, *, sigmoid: bool = False
) -> dict[str, Tensor]:
    """The state of a :class:`Blend` of two networks, from their states."""
    state = {f"blend_a.{name}": tensor for name, tensor in a.items()}
    state |= {f"blend_b.{name}": tensor for name, tensor in b.items()}
    kind = {_SIGMOID: torch.tensor(True)} if sigmoid else {}
    return {**state, _WEIGHT: torch.tensor(weight, dtype=torch.float64), **kind}


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
        found = Blend(model, deepcopy(model), sigmoid=_SIGMOID in state).to(device)
    found.load_state_dict(state)
    return found
