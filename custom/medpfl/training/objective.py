"""What a site minimises: the task's loss on its own data, and the terms that mechanisms add to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from medpfl.models import logits
from medpfl.training.loop import Loss, Objective
from medpfl.training.part import Beside, Forward, Part, Term


def objective_of(model: nn.Module, parts: Sequence[Part], loss: Loss, of_others: Loss | None = None) -> Objective:
    """The objective of a round.

    Args:
        model: in training.
        loss: of the site's own samples.
        of_others: of samples beside them; by default the same.
        parts: of the run's mechanisms; one forward and one set of batches beside the site's own at most.
    """
    terms = [part.term for part in parts if part.term]
    forward = next((part.forward for part in parts if part.forward), partial(_logits, model))
    beside = next((part.beside for part in parts if part.beside), None)
    return partial(_minimised, forward, terms, beside, loss, of_others or loss)


def _minimised(
    forward: Forward, terms: Sequence[Term], beside: Beside | None, loss: Loss, of_others: Loss, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """With batches beside: the sum of two means, each of its own batch, from one pass over both.

    So batch norm sees both kinds of images together.
    """
    if beside is None:
        scores, own = forward(x)
        found = loss(scores, y)
        return found, sum((term() for term in terms), found + own)
    images, labels = next(beside.batches)
    scores, own = forward(torch.cat((x, images)))
    found = loss(scores[: len(y)], y)
    more = beside.weight * of_others(scores[len(y) :], labels)
    return found, sum((term() for term in terms), found + own + more)


def _logits(model: nn.Module, x: Tensor) -> tuple[Tensor, float]:
    return logits(model(x)), 0.0
