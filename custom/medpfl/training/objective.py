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
        parts: of the run's mechanisms; one forward at most.
        loss: of the site's own samples.
        of_others: of samples beside them whose labels are not the site's own; by default the same.
    """
    terms = [part.term for part in parts if part.term]
    forward = next((part.forward for part in parts if part.forward), partial(_logits, model))
    # Those made of the site's own samples come next to these: who watches a pass finds them there.
    beside = sorted((each for part in parts for each in part.beside), key=lambda each: not each.own)
    return partial(_minimised, forward, terms, beside, loss, of_others or loss)


def _minimised(
    forward: Forward,
    terms: Sequence[Term],
    beside: Sequence[Beside],
    loss: Loss,
    of_others: Loss,
    x: Tensor,
    y: Tensor,
) -> tuple[Tensor, Tensor]:
    """With samples beside: the sum of means, each of its own kind, from one pass over all.

    So batch norm sees all kinds of images together.
    """
    others = [each.made(x, y) for each in beside]
    scores, own = forward(torch.cat((x, *(images for images, _ in others))) if others else x)
    found = loss(scores[: len(y)], y)
    minimised = found + (own(y) if callable(own) else own)
    first = len(y)
    for each, (_, labels) in zip(beside, others, strict=True):
        rows = slice(first, first + len(labels))
        minimised = minimised + each.weight * (loss if each.own else of_others)(scores[rows], labels)
        if each.term:
            minimised = minimised + each.term(y, labels, rows)
        first = rows.stop
    return found, sum((term() for term in terms), minimised)


def _logits(model: nn.Module, x: Tensor) -> tuple[Tensor, float]:
    return logits(model(x)), 0.0
