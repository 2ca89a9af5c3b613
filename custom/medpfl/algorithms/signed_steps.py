"""Samples moved by signed steps along the gradient of a model's loss (Goodfellow, Shlens, Szegedy, ICLR 2015)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import inf

import torch
from torch import Tensor, nn

from medpfl.training.loop import Loss


def fixed(model: nn.Module) -> nn.Module:
    """A copy in eval mode of which nothing is trained."""
    return deepcopy(model).eval().requires_grad_(False)


def moved(
    scores: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, loss: Loss, size: float, number: int, within: float = inf
) -> Tensor:
    """x after ``number`` steps x <- x + size sign(grad loss), each then brought back to ``within`` of where x began.

    In the inputs' own precision, whatever training has. Samples do not see each other in a model in eval mode, so that
    they go in whole batches.

    Args:
        scores: from inputs to a model's logits, in eval mode.
        x: (B, ...) inputs.
        y: (B,) labels.
        loss: mean over the batch.
        size: of a step, in units of the inputs; a negative one makes the loss smaller.
        number: of steps.
        within: how far a value may get from where it began.
    """
    start = x.detach()
    now = start
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        for _ in range(number):
            now = now.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(loss(scores(now), y), now)
            now = start + (now.detach() + size * gradient.sign() - start).clamp(-within, within)
    return now.detach()
