"""What tells images from others in a digest of data, at the pace of a sum."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = 256
"""Samples of which numbers of 64 bits are in memory."""


def _bits(tensor: Tensor) -> Tensor:
    """A contiguous tensor as whole numbers of the same bits."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def edge_sums(samples: Tensor) -> Tensor:
    """What tells samples (n, ...) from others, and from the same mirrored or turned, (n, the sum of their edges) int64.

    For each axis the sums over all others of the bits as whole numbers, so that another device or number of threads
    gives the same.
    """
    return torch.cat([_edge_sums(some) for some in _bits(samples).split(_AT_ONCE)])


def _edge_sums(whole: Tensor) -> Tensor:
    found = []
    while whole.ndim > 2:
        found.append(whole.sum(list(range(1, whole.ndim - 1)), dtype=torch.int64))
        whole = whole.sum(-1, dtype=torch.int64)
    return torch.cat([*found, whole.long()], 1)
