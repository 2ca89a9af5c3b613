"""Mixing: row i of the matrix W makes site i's next shared state from the sites' updates.

The robust mixings have no matrix: every value of the common next state is a median or a trimmed mean over the sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch

from medpfl.parameters import State

MIXINGS = {
    "identity": "every site keeps its own",
    "samples": "by number of training samples, the same for all sites (FedAvg)",
    "similarity": "by similarity of the batch-norm inputs under a pretrained model (FedAP)",
    "similarity-classifier": "by similarity of the classification layer's input under a pretrained model (d-FedAP)",
    "similarity-running": "by sample numbers in the first half of the rounds, then by similarity of the sites' own "
    "running batch-norm statistics (f-FedAP)",
    "uniform": "lambda for the site itself, the rest equally (FedAP's ablation)",
    "median": "coordinate-wise median, the same for all sites (Yin et al.)",
    "trimmed-mean": "coordinate-wise mean without the share `trim` of the largest and of the smallest (Yin et al.)",
}

ROBUST = ("median", "trimmed-mean")
"""Mixings without a matrix: Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal
statistical rates. ICML 2018. Sites count the same, whatever numbers of samples they say."""
LEAST_ROBUST = 3
"""Updates below which a median is a mean."""


def sample_weights(samples: Sequence[int]) -> np.ndarray:
    """W of FedAvg: n_j / sum n in every row."""
    share = np.asarray(samples, np.float64) / np.sum(samples)
    return np.tile(share, (len(share), 1))


def counted_samples(samples: Sequence[int], largest: float) -> list[int]:
    """Numbers of samples as they count: at most ``largest`` times the median of those that are not 0.

    A number is what a site says, and nothing proves it.
    """
    known = [n for n in samples if n]
    limit = largest * float(np.median(known)) if known else 0.0
    return [n if n <= limit else max(1, int(limit)) for n in samples]


def uniform_weights(sites: int, self_weight: float) -> np.ndarray:
    """W with lambda on the diagonal and (1 - lambda) / (N - 1) elsewhere."""
    if sites == 1:
        return np.ones((1, 1))
    weights = np.full((sites, sites), (1 - self_weight) / (sites - 1))
    np.fill_diagonal(weights, self_weight)
    return weights


def restrict(weights: np.ndarray, present: Sequence[int]) -> np.ndarray:
    """The columns of the sites that contributed, with every row scaled to sum to 1 again.

    A row without any weight left (a site that mixes with nobody who is here) becomes all zero.

    Args:
        weights: (N, N).
        present: indices of the M contributing sites.

    Returns:
        (N, M).
    """
    kept = weights[:, list(present)]
    mass = kept.sum(axis=1, keepdims=True)
    return np.divide(kept, mass, out=np.zeros_like(kept), where=mass > 0)


def mix(weights: np.ndarray, updates: Sequence[State]) -> list[State]:
    """One matrix product per tensor: next_i = sum_j W_ij update_j (FedAP, eq. 2), in float32.

    Rows that are equal (FedAvg: all) are computed once and share their tensors; nothing may modify them in place.

    Args:
        weights: (N, M), rows sum to 1.
        updates: M states with the same names and shapes; emptied tensor by tensor as they are mixed, so that the peak
            is one tensor above the larger of what goes in and what comes out.

    Returns:
        N states.
    """
    rows, of_site = np.unique(weights, axis=0, return_inverse=True)
    w = torch.from_numpy(rows).to(torch.float32)
    mixed: list[State] = [{} for _ in rows]
    for name in list(updates[0]):
        stack = torch.stack([u.pop(name) for u in updates])
        product = (w.to(stack.device) @ stack.reshape(len(updates), -1).to(torch.float32)).to(stack.dtype)
        for state, row in zip(mixed, product, strict=True):
            state[name] = row.reshape(stack.shape[1:])
    return [mixed[i] for i in np.ravel(of_site)]


def cap_others(weights: np.ndarray, own: Sequence[int | None], cap: float) -> np.ndarray:
    """Rows in which no other site weighs more than ``cap``.

    What is above the cap goes to the row's other sites in proportion to their weights, as far as the cap lets it, and
    what is then left to the site itself. A site without an update of its own cannot take it: its row becomes all zero.

    Args:
        weights: (N, M), rows sum to 1 or are all zero.
        own: for each row, the column of the site's own update; None if it is not there.
        cap: in (0, 1]; 1 changes nothing.

    Returns:
        (N, M), rows sum to 1 or are all zero.
    """
    capped = weights.copy()
    if cap >= 1:
        return capped
    for row, mine in zip(capped, own, strict=True):
        others = np.arange(len(row)) != (-1 if mine is None else mine)
        if row[others].max(initial=0.0) <= cap:
            continue
        mass = row[others].sum()
        row[others] = _filled(row[others], cap)
        if mine is not None:
            row[mine] += max(0.0, mass - row[others].sum())  # what is over by rounding is none
        elif row.sum() < 1 - 1e-9:
            row[:] = 0.0
    return capped


def _filled(weights: np.ndarray, cap: float) -> np.ndarray:
    """The weights' sum, divided again in proportion with none above the cap; all at the cap if it is too much."""
    mass = weights.sum()
    if mass >= len(weights) * cap:
        return np.full_like(weights, cap)
    filled, full = weights.copy(), np.zeros(len(weights), dtype=bool)
    while (over := (filled > cap) & ~full).any():
        full |= over
        rest = weights[~full]
        share = rest / rest.sum() if rest.sum() > 0 else np.full(len(rest), 1 / len(rest))
        filled[full] = cap
        filled[~full] = (mass - full.sum() * cap) * share
    return filled


def robust_mix(mixing: str, updates: Sequence[State], trim: float = 0.0) -> State:
    """The common next state of a robust mixing: every value is that of the sorted values of the sites.

    The median of an even number is the mean of the middle two. A trimmed mean leaves out the ceil(trim M) largest and
    as many of the smallest of M values, but never all. With fewer than half (median) or no more than that many (trimmed
    mean) sites that say what they like, every value stays between the smallest and the largest of the others'.

    Args:
        mixing: one of :data:`ROBUST`.
        updates: M states with the same names and shapes; emptied tensor by tensor.
        trim: the paper's beta, in [0, 0.5).
    """
    count = len(updates)
    out = (count - 1) // 2 if mixing == "median" else min(ceil(trim * count - 1e-9), (count - 1) // 2)
    mixed: State = {}
    for name in list(updates[0]):
        stack = torch.stack([u.pop(name) for u in updates])
        kept = stack.to(torch.float32).sort(dim=0).values[out : count - out]
        mixed[name] = kept.mean(dim=0).to(stack.dtype)
    return mixed
