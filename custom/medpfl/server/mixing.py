"""Mixing: row i of the matrix W makes site i's next shared state from the sites' updates."""

from __future__ import annotations

from collections.abc import Sequence

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
}


def sample_weights(samples: Sequence[int]) -> np.ndarray:
    """W of FedAvg: n_j / sum n in every row."""
    share = np.asarray(samples, np.float64) / np.sum(samples)
    return np.tile(share, (len(share), 1))


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
