"""Weights that are made to show single images have rows that copy each other.

A server that may choose weights makes the rows of a layer one direction with other thresholds: each row then sums the
gradients of the images beyond its threshold, and the difference of two rows is a single image (Fowl, Geiping, Czaja,
Goldblum, Goldstein: Robbing the Fed, ICLR 2022). Rows of a layer that was drawn at random, or learned, point in
directions of their own. This finds that construction and what is near it, and no other: weights can be made to leak
with rows that differ (Boenisch et al., When the curious abandon honesty, EuroS&P 2023), if fewer images.
"""

from __future__ import annotations

from torch import Tensor

from medpfl.parameters import State

_ROWS, _WIDTH = 16, 64
"""A layer with fewer rows cannot sort images, and narrower rows are alike by chance."""
_MOST_ROWS = 512
"""Rows that are looked at; of larger layers every k-th."""
_SAME = 0.5
"""Absolute cosine from which on two rows are one direction; of random rows of width 64 one pair in 10^25 is."""


def copied(weight: Tensor) -> float:
    """Share of a layer's rows that are, up to scale, another row; zero rows count as none.

    Args:
        weight: (rows, ...), flattened to (rows, width).
    """
    rows = weight.detach().float().flatten(1)
    rows = rows[:: max(1, len(rows) // _MOST_ROWS)]
    lengths = rows.norm(dim=1)
    rows = rows[lengths > 1e-6 * lengths.max().clamp_min(1e-30)]
    if len(rows) < 2:
        return 0.0
    unit = rows / rows.norm(dim=1, keepdim=True)
    alike = (unit @ unit.T).abs()
    alike.fill_diagonal_(0)
    return float((alike.amax(1) > _SAME).float().mean())


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
