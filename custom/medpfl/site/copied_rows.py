"""Weights that are made to show single images have rows that copy each other.

A server that may choose weights makes the rows of a layer one direction with other thresholds: each row then sums the
gradients of the images beyond its threshold, and the difference of two rows is a single image (Fowl, Geiping, Czaja,
Goldblum, Goldstein: Robbing the Fed, ICLR 2022). Rows of a layer that was drawn at random, or learned, point in
directions of their own: trained with Adam or momentum for long, half of a layer's rows come within a cosine of 0.5 of
another, and hardly one within :data:`_SAME`. This finds that construction and what is near it, and no other: rows that
differ more can be made to leak too (Boenisch et al., When the curious abandon honesty, EuroS&P 2023), if fewer images.
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

from medpfl.core.parameters import State

_ROWS, _WIDTH = 16, 64
"""A layer with fewer rows cannot sort images, and narrower rows are alike by chance."""
_AT_ONCE = 512
"""Rows that are compared with all others at a time."""
_PROJECTED = 192
"""Wider rows are compared by so many random products, which the sender cannot know."""
_SAME = 0.8
"""Absolute cosine from which on two rows are one direction."""
_COUNTED = 256
"""Rows of which a share may be copies; of a wider layer no more may, for it is copies that sort images."""


def copied(weight: Tensor) -> float:
    """Share of a layer's rows, of :data:`_COUNTED` at most, that are another row up to scale; zero rows count as none.

    Args:
        weight: (rows, ...), flattened to (rows, width).
    """
    rows = weight.detach().flatten(1)
    largest = rows.abs().amax(1, keepdim=True)
    rows = (rows.double() / largest).float()[largest[:, 0] > 0]  # whatever their lengths, none hides the others
    if len(rows) < 2:
        return 0.0
    if rows.shape[1] > 2 * _PROJECTED:
        secret = torch.Generator().manual_seed(secrets.randbits(63))
        rows = rows @ torch.randn(rows.shape[1], _PROJECTED, generator=secret)
    unit = rows / rows.norm(dim=1, keepdim=True)
    found = 0
    for start in range(0, len(unit), _AT_ONCE):
        alike = (unit[start : start + _AT_ONCE] @ unit.T).abs()
        alike[torch.arange(len(alike)), torch.arange(start, start + len(alike))] = 0
        found += int((alike.amax(1) > _SAME).sum())
    return found / min(len(unit), _COUNTED)


def copying_layer(shared: State, start: State, most: float) -> str | None:
    """The first layer of which more rows copy each other than a policy lets, and than in the first model.

    Args:
        shared: what came.
        start: the shared part of the first model.
        most: the share of rows that may.
    """
    for name, tensor in shared.items():
        wide = tensor.ndim >= 2 and len(tensor) >= _ROWS and tensor[0].numel() >= _WIDTH
        if wide and (share := copied(tensor)) > most and share > 2 * copied(start[name]):
            return name
    return None
