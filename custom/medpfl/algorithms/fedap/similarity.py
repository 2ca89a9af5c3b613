"""How alike two sites' data are, from statistics of layer inputs (Lu et al., FedAP, eqs. 4-8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

LayerStatistics = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Per layer: mean and variance of every channel of its input, each of shape (channels,)."""


def wasserstein_distances(statistics: Sequence[LayerStatistics]) -> np.ndarray:
    """Distances between sites: the 2-Wasserstein distance of diagonal Gaussians, summed over the layers (eq. 6).

    d_ij = sum_l ( |mean_i - mean_j|^2 + |sqrt(var_i) - sqrt(var_j)|^2 )^(1/2), in float64.

    Args:
        statistics: one mapping a site, all with the same layers and channels.

    Returns:
        (sites, sites), symmetric, zero on the diagonal.
    """
    from scipy.spatial.distance import pdist, squareform

    total = np.zeros((len(statistics), len(statistics)))
    for layer in sorted(statistics[0]):  # a state read from a checkpoint has them in another order
        mean = np.stack([np.asarray(s[layer][0], np.float64) for s in statistics])
        deviation = np.sqrt(np.stack([np.asarray(s[layer][1], np.float64) for s in statistics]))
        points = np.concatenate([mean, deviation], axis=1)
        # Of differences themselves, not |a|^2 + |b|^2 - 2ab, which loses near-identical sites to cancellation.
        total += squareform(pdist(points))
    return total


def copies(statistics: Sequence[LayerStatistics]) -> list[tuple[int, int]]:
    """Pairs of sites with the same statistics to the last bit: the same data, or one has copied the other's."""

    def content(site: LayerStatistics) -> bytes:
        return b"".join(np.asarray(array, np.float64).tobytes() for layer in sorted(site) for array in site[layer])

    contents = [content(of_site) for of_site in statistics]
    return [(i, j) for j in range(len(contents)) for i in range(j) if contents[i] == contents[j]]


def similarity_weights(distances: np.ndarray, self_weight: float) -> np.ndarray:
    """The mixing matrix W from distances (eqs. 7-8).

    W_ii = lambda; W_ij = (1 - lambda) (1/d_ij) / sum_k!=i (1/d_ik). Sites at distance 0 share the whole
    off-diagonal mass of the row between them.

    Args:
        distances: (sites, sites), non-negative; NaN where a distance is not known, which counts as the mean of the
            known distances.
        self_weight: lambda, in [0, 1].

    Returns:
        (sites, sites), rows sum to 1.
    """
    n = len(distances)
    if n == 1:
        return np.ones((1, 1))
    off = ~np.eye(n, dtype=bool)
    known = off & ~np.isnan(distances)
    d = np.where(np.isnan(distances), distances[known].mean() if known.any() else 1.0, distances)
    # Scaled by the row's smallest distance, 1/d neither overflows nor loses the ratio of tiny distances.
    nearest = np.min(np.where(off, d, np.inf), axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        closeness = np.where(nearest > 0, nearest / d, d == 0)
    closeness = np.where(off, closeness, 0.0)
    weights = (1 - self_weight) * closeness / closeness.sum(axis=1, keepdims=True)
    np.fill_diagonal(weights, self_weight)
    return weights
