"""Mixing: row i of the matrix W makes site i's next shared state from the sites' updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from medpfl.core.parameters import State


def sample_weights(samples: Sequence[int]) -> np.ndarray:
    """W by numbers of samples (McMahan et al. 2017): n_j / sum n in every row."""
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
    """One matrix product per tensor: next_i = sum_j W_ij update_j (Lu et al. 2022, eq. 2).

    In float32, a tensor in float64 in float64.

    Rows that are equal are computed once and share their tensors; nothing may modify them in place.

    Args:
        weights: (N, M), rows sum to 1.
        updates: M states with the same names and shapes; emptied tensor by tensor as they are mixed, so that the peak
            is one tensor above the larger of what goes in and what comes out.

    Returns:
        N states.
    """
    rows, of_site = np.unique(weights, axis=0, return_inverse=True)
    mixed: list[State] = [{} for _ in rows]
    for name in list(updates[0]):
        stack = torch.stack([u.pop(name) for u in updates])
        w = torch.from_numpy(rows).to(stack.device, reckoned_in(stack.dtype))
        product = (w @ stack.reshape(len(updates), -1).to(w.dtype)).to(stack.dtype)
        for state, row in zip(mixed, product, strict=True):
            state[name] = row.reshape(stack.shape[1:])
    return [mixed[i] for i in np.ravel(of_site)]


def reckoned_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of a type are joined: float32, and float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


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
    filled, full = weights.copy(), np.zeros(len(weights), dtype=bool)
    while (over := (filled > cap) & ~full).any():
        full |= over
        if full.all():  # it is too much, or but for a rounding
            return np.full_like(weights, cap)
        rest = weights[~full]
        share = rest / rest.sum() if rest.sum() > 0 else np.full(len(rest), 1 / len(rest))
        filled[full] = cap
        filled[~full] = (mass - full.sum() * cap) * share
    return filled
