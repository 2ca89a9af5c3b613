"""What a site minimises: cross-entropy on its own data, and the terms that a method adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from medpfl.algorithms.base import Value
from medpfl.models import logits
from medpfl.parameters import ParameterSplit
from medpfl.site.consistency import consistency_term, sub_network_logits
from medpfl.site.data import Batch

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a batch of inputs and labels to the cross-entropy on it, and to what is minimised."""
Term = Callable[[], Tensor]
Forward = Callable[[Tensor], tuple[Tensor, Tensor | float]]
"""From a batch of inputs to the model's logits and to what the model itself adds to the loss."""


def site_objective(
    model: nn.Module,
    split: ParameterSplit,
    settings: Mapping[str, Value],
    impression: Iterator[Batch] | None = None,
) -> Objective:
    """The objective that the settings say.

    Args:
        model: with the values that the round begins with.
        split: what is shared.
        settings: ``mu``; ``consistency`` and ``temperature`` where heads are personal; ``beta`` with an impression.
        impression: batches of the federated impression.
    """
    terms = []
    if mu := settings.get("mu"):
        terms.append(partial(proximal_term, split, model, split.shared_state(model), mu))
    forward = partial(_logits, model)
    if (weight := settings.get("consistency")) and split.heads_divided:
        forward = partial(_consistent, sub_network_logits(model, split.heads), weight, settings["temperature"])
    if impression is None:
        return partial(_local, forward, terms)
    return partial(_with_impression, forward, terms, impression, settings["beta"])


def cross_entropy_objective(model: nn.Module, terms: Sequence[Term] = ()) -> Objective:
    """Cross-entropy of the model plus the terms."""
    return partial(_local, partial(_logits, model), terms)


def _local(forward: Forward, terms: Sequence[Term], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scores, own = forward(x)
    loss = cross_entropy(scores, y)
    return loss, sum((term() for term in terms), loss + own)


def _with_impression(
    forward: Forward, terms: Sequence[Term], impression: Iterator[Batch], beta: float, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """CE(local) + beta CE(impression) (FedImpres, eq. 5), each a mean of its own, from one pass over both.

    So batch norm sees both kinds of images together, as in the authors' code.
    """
    images, labels = next(impression)
    scores, own = forward(torch.cat((x, images)))
    loss = cross_entropy(scores[: len(y)], y)
    return loss, sum((term() for term in terms), loss + own + beta * cross_entropy(scores[len(y) :], labels))


def _logits(model: nn.Module, x: Tensor) -> tuple[Tensor, float]:
    return logits(model(x)), 0.0


def _consistent(
    three_logits: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], weight: float, temperature: float, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Shen et al., eq. 6."""
    whole, shared, personal = three_logits(x)
    return whole, weight * consistency_term(shared, personal, temperature)


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
