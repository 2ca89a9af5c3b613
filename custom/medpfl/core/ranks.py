"""Ranks in which equal values share theirs."""

from __future__ import annotations

import numpy as np


def midranks(rows: np.ndarray) -> np.ndarray:
    """Each value's rank in its row from 1, the least; equal values have the mean of theirs, (rows, n).

    What ``scipy.stats.rankdata`` gives, whose import would take a quarter of a site's start.
    """
    order = rows.argsort(1)
    ordered = np.take_along_axis(rows, order, 1)
    differs = ordered[:, 1:] != ordered[:, :-1]
    edge = np.ones((len(rows), 1), bool)
    places = np.arange(rows.shape[1])
    first = np.maximum.accumulate(np.where(np.hstack([edge, differs]), places, 0), 1)
    last = np.minimum.accumulate(np.where(np.hstack([differs, edge]), places, len(places))[:, ::-1], 1)[:, ::-1]
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, 1)
    return ranks
