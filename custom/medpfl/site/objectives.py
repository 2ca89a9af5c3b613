"""What a site minimises, as sums of terms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from medpfl.parameters import ParameterSplit


def proximal_term(split: ParameterSplit, model: nn.Module, received: Mapping[str, Tensor], mu: float) -> Tensor:
    """FedProx's penalty (mu/2) |psi - psi_received|^2 over the shared parameters (Li et al. 2020, eq. 2).

    Args:
        split: what is shared.
        model: in training.
        received: the shared state that the round began with, on the model's device.
        mu: strength, >= 0.

    Returns:
        A scalar, differentiable with respect to the model's shared parameters only.
    """
    squares = [(w - received[name]).square().sum() for name, w in split.shared_views(model).items()]
    return mu / 2 * torch.stack(squares).sum()
