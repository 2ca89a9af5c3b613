"""An epoch in which rare classes are as frequent as common ones."""

from __future__ import annotations

import torch
from torch import Tensor

from medpfl.core.seeding import is_even


def counts_of(labels: Tensor, classes: int = 0) -> Tensor:
    """How many samples each class has, (classes or more,) int64; not those whose label is below 0.

    Args:
        labels: (n,) int64.
        classes: of how many there is a number at least.
    """
    return torch.bincount(labels[labels >= 0], minlength=classes)


def balanced_order(labels: Tensor, order: torch.Generator) -> Tensor:
    """Which samples an epoch has, (m,) int64.

    Drawn with replacement, as many as there are, each class that is there as often as every other. Where an order is
    the same in every round a draw would be too, and what it left out would never be met: there every sample of a class
    comes as often as every other, whole times, so that its class is within a third as frequent as the most frequent
    one, and the epoch is longer. No sample weighs more than another of its class, and no round has others than another.
    Samples whose label is below 0, which a loss leaves out, are in none.

    Args:
        labels: (n,) int64, on the CPU.
        order: random numbers of the epoch.
    """
    counts, known = counts_of(labels), (labels >= 0).nonzero().flatten()
    if not is_even(order):
        weights = torch.zeros(len(labels)).index_copy_(0, known, 1.0 / counts[labels[known]])
        return torch.multinomial(weights, len(labels), replacement=True, generator=order)
    chosen = known.repeat_interleave(_times(counts)[labels[known]])
    return chosen[torch.randperm(len(chosen), generator=order)]


def repeated(labels: Tensor) -> int:
    """How many samples an epoch has where the order is the same in every round, and they are repeated.

    Args:
        labels: (n,) int64, of all samples.
    """
    counts = counts_of(labels)
    return int((counts * _times(counts)).sum())


def _times(counts: Tensor) -> Tensor:
    """How often each sample of a class comes, (classes,) int64."""
    return (counts.max() / counts.clamp(min=1)).round().long()
