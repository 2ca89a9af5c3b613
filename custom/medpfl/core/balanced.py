"""An epoch in which rare classes are as frequent as common ones."""

from __future__ import annotations

import torch
from torch import Tensor

from medpfl.core.seeding import Order


def balanced_order(labels: Tensor, order: torch.Generator) -> Tensor:
    """Which samples an epoch has, (n,) int64, as many as there are.

    Drawn with replacement, each class that is there as often as every other. Where an order is the same in every round
    the draw would be too, and a sample that is not drawn once would never be: there a common class is dealt out to as
    many rounds as it takes to meet each sample, and a rare class' samples come several times in every round.

    Args:
        labels: (n,) int64, on the CPU.
        order: random numbers of the epoch.
    """
    turn = order.turn if isinstance(order, Order) else None
    if turn is None:
        chances = 1.0 / torch.bincount(labels)[labels]
        return torch.multinomial(chances, len(labels), replacement=True, generator=order)
    classes, drawn = labels.unique(), []
    for i, of_class in enumerate(classes):
        own = torch.nonzero(labels == of_class).flatten()
        wanted = len(labels) // len(classes) + (i < len(labels) % len(classes))
        rounds = -(-len(own) // wanted)
        dealt = own[turn % rounds :: rounds]  # every so many, so that a patient's samples are dealt out too
        drawn.append(dealt.repeat(-(-wanted // len(dealt)))[:wanted])
    return torch.cat(drawn)[torch.randperm(len(labels), generator=order)]
