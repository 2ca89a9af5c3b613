"""What a site minimises: cross-entropy on its own data, and the terms that a method adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from medpfl.algorithms.base import Value
from medpfl.models import logits
from medpfl.parameters import ParameterSplit
from medpfl.site.consistency import consistency_term, sub_network_logits

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a batch of inputs and labels to the cross-entropy on it, and to what is minimised."""
Term = Callable[[], Tensor]


def site_objective(model: nn.Module, split: ParameterSplit, settings: Mapping[str, Value]) -> Objective:
    """The objective that the settings say.

    Args:
        model: with the values that the round begins with.
        split: what is shared.
        settings: ``mu``; ``consistency`` and ``temperature`` where heads are personal.
    """
    terms = []
    if mu := settings.get("mu"):
        terms.append(partial(proximal_term, split, model, split.shared_state(model), mu))
    weight = settings.get("consistency")
    if not weight or not split.heads_divided:
        return cross_entropy_objective(model, terms)
    three_logits = sub_network_logits(model, split.heads)

    def objective(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Shen et al., eq. 6."""
        whole, shared, personal = three_logits(x)
        loss = cross_entropy(whole, y)
        agreement = consistency_term(shared, personal, settings["temperature"])
        return loss, sum((term() for term in terms), loss + weight * agreement)

    return objective


def cross_entropy_objective(model: nn.Module, terms: Sequence[Term] = ()) -> Objective:
    """Cross-entropy of the model plus the terms."""

    def objective(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = cross_entropy(logits(model(x)), y)
        return loss, sum((term() for term in terms), loss)

    return objective


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
