"""Gives images to sites. Every function returns one array of indices per site; no index occurs twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed
from medpfl.data.partition.published_counts import COUNTS, NAME
from medpfl.data.partition.spec import PartitionSpec

REDRAWS = 1000
"""How often shares by Dirichlet are drawn again at most."""


def draw(
    spec: PartitionSpec,
    labels: np.ndarray,
    sites: int,
    seed: int,
    site_ids: np.ndarray | None = None,
    least: int = 1,
) -> list[np.ndarray]:
    """Draws a partition of all images.

    Args:
        spec: ``dirichlet``, ``equal-dirichlet``, ``shards``, ``iid`` or ``natural``.
        labels: (n,) int64.
        sites: number of sites.
        seed: the run's seed; the draw's own derives from it, the spec and the number of sites.
        site_ids: (n,) the site each image comes from, for ``natural``.
        least: with ``dirichlet`` all sites' shares are drawn again, :data:`REDRAWS` times at most, until every site has
            so many images; where no draw gives them, the first stands.

    Raises:
        UserError: fewer than one site, more sites or shards than images, or no site ids where they are needed.
    """
    if sites < 1:
        raise UserError(f"--sites {sites}: at least one site is needed")
    if sites > len(labels):
        raise UserError(f"--sites {sites}: there are only {len(labels)} images to divide")
    rng = np.random.default_rng(derive_seed(seed, "partition", str(spec), sites))
    if spec.kind == "natural":
        return _natural(site_ids, sites)
    if spec.kind == "iid":
        return np.array_split(rng.permutation(len(labels)), sites)
    if spec.kind == "dirichlet":
        return _dirichlet(rng, spec.alpha, labels, sites, least)
    if spec.kind == "equal-dirichlet":
        return _equal_dirichlet(rng, spec.alpha, labels, sites)
    if spec.kind == "shards":
        return _shards(rng, spec.shards, labels, sites)
    raise ValueError(f"{spec} is not drawn from labels alone")


def draw_like(counts: np.ndarray, labels: np.ndarray, seed: int, purpose: str) -> list[np.ndarray]:
    """Divides all images so that each site's share of each class is as in ``counts``.

    Args:
        counts: (sites, classes); a class without a count is divided as the sites' totals are.
        labels: (n,) of the images to divide.
        seed: the run's seed.
        purpose: sets this draw apart from others with the same seed.
    """
    rng = np.random.default_rng(derive_seed(seed, "partition-like", purpose, len(counts)))
    totals = counts.sum(axis=1)
    shares = [column if column.any() else totals for column in counts.T]
    return _collect(
        [
            np.split(pool, _cuts(share, len(pool)))
            for share, pool in zip(shares, _pools(rng, labels, len(shares)), strict=True)
        ]
    )


def draw_printed(table: str, labels: np.ndarray, classes: Sequence[str], seed: int) -> list[np.ndarray]:
    """Draws the training images of a printed table without replacement.

    Args:
        table: a key of :data:`medpfl.data.partition.published_counts.COUNTS`.
        labels: (n,) of the training images.
        classes: class names.
        seed: the run's seed.

    Raises:
        UserError: the data set has not eight classes, or fewer images of a class than the table asks for.
    """
    counts = np.array(COUNTS[table])
    if len(classes) != counts.shape[1]:
        raise UserError(f"partition {NAME}-{table} is for bloodmnist's 8 classes; this data set has {len(classes)}")
    there = np.bincount(labels, minlength=len(classes))
    if len(short := np.flatnonzero(counts.sum(axis=0) > there)):
        needed, name = counts.sum(axis=0)[short[0]], classes[short[0]]
        raise UserError(
            f"partition {NAME}-{table} needs {needed} training images of class {name}, there are {there[short[0]]}: "
            "use the full bloodmnist"
        )
    rng = np.random.default_rng(derive_seed(seed, "partition", f"{NAME}-{table}", len(counts)))
    pools = _pools(rng, labels, len(classes))
    return _collect([np.split(pool, np.cumsum(column))[:-1] for column, pool in zip(counts.T, pools, strict=True)])


def require_site_ids(site_ids: np.ndarray | None) -> None:
    """UserError if the data set does not say which site an image is from, as ``natural`` needs."""
    if site_ids is None:
        raise UserError(
            "partition natural: the data set does not say which site an image is from (an npz file says it with "
            "train_sites, val_sites and test_sites): use dirichlet:A or iid"
        )


def _natural(site_ids: np.ndarray | None, sites: int) -> list[np.ndarray]:
    require_site_ids(site_ids)
    names, site = np.unique(site_ids, return_inverse=True)
    if len(names) != sites:
        raise UserError(
            f"--sites {sites}: the data set has images of {len(names)} sites; natural takes them as they are"
        )
    return [np.flatnonzero(site == k) for k in range(sites)]


def _dirichlet(rng: np.random.Generator, alpha: float, labels: np.ndarray, sites: int, least: int) -> list[np.ndarray]:
    """For each class, proportions over the sites ~ Dir(alpha)."""
    pools = _pools(rng, labels, int(labels.max()) + 1)
    shares = np.stack([_proportions(*_log_gamma_draws(rng, alpha, sites)) for _ in pools])
    if _sizes(shares, pools).min() < least <= len(labels) // sites:
        again = _proportions(*_log_gamma_draws(rng, alpha, (REDRAWS, len(pools), sites)))
        if len(good := np.flatnonzero(_sizes(again, pools).min(-1) >= least)):
            shares = again[good[0]]
    return _collect([np.split(pool, _cuts(share, len(pool))) for share, pool in zip(shares, pools, strict=True)])


def _sizes(shares: np.ndarray, pools: list[np.ndarray]) -> np.ndarray:
    """How many images each site would have, (..., sites), by shares of each class (..., classes, sites)."""
    sizes = np.array([len(pool) for pool in pools])[:, None]
    cuts = _cuts(shares, sizes)
    ends = np.broadcast_to(sizes, (*cuts.shape[:-1], 1))
    return np.diff(np.concatenate([np.zeros_like(ends), cuts, ends], -1), axis=-1).sum(-2)


def _equal_dirichlet(rng: np.random.Generator, alpha: float, labels: np.ndarray, sites: int) -> list[np.ndarray]:
    """Lu et al. 2022: site after site draws class proportions and takes floor(n / sites) images by them."""
    pools = _pools(rng, labels, int(labels.max()) + 1)
    left, taken = np.array([len(pool) for pool in pools]), np.zeros(len(pools), dtype=np.int64)
    parts = []
    for _ in range(sites):
        logs, scale = _log_gamma_draws(rng, alpha, len(pools))
        wanted, take = len(labels) // sites, np.zeros(len(pools), dtype=np.int64)
        # What exceeds a class is drawn again from the classes that still have images, as drawing one by one would do.
        # Each pass ends the draw or exhausts a class, so there are at most as many passes as classes.
        while rest := wanted - int(take.sum()):
            open_classes = np.flatnonzero(left > take)
            more = rng.multinomial(rest, _proportions(logs[open_classes], scale))
            take[open_classes] = np.minimum(take[open_classes] + more, left[open_classes])
        parts.append(np.concatenate([pool[t : t + k] for pool, t, k in zip(pools, taken, take, strict=True)]))
        taken += take
        left -= take
    return parts


def _shards(rng: np.random.Generator, each: int, labels: np.ndarray, sites: int) -> list[np.ndarray]:
    """McMahan et al. 2017: the images sorted by class are cut into shards of one size, of which each site gets some."""
    if sites * each > len(labels):
        raise UserError(f"partition shards:{each} of {sites} sites are {sites * each} shards of {len(labels)} images")
    order = rng.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], sites * each)
    whose = rng.permutation(sites * each).reshape(sites, each)
    return [np.concatenate([shards[i] for i in own]) for own in whose.tolist()]


def _log_gamma_draws(rng: np.random.Generator, alpha: float, size: int | tuple[int, ...]) -> tuple[np.ndarray, float]:
    """Logarithms of Gamma(alpha) draws, as ``(z, scale)`` with log x = z / scale.

    Gamma(alpha) = Gamma(alpha + 1) U^(1/alpha). At small alpha x itself underflows to 0, which turns a Dirichlet draw
    into 0/0; z is finite at any alpha.
    """
    if alpha >= 1:
        return np.log(rng.standard_gamma(alpha, size)), 1.0
    return alpha * np.log(rng.standard_gamma(alpha + 1, size)) + np.log1p(-rng.random(size)), alpha


def _proportions(z: np.ndarray, scale: float) -> np.ndarray:
    """Along the last axis: sums to 1, never NaN, because the largest entry is exp(0) before it is divided."""
    with np.errstate(over="ignore"):
        weights = np.exp((z - z.max(-1, keepdims=True)) / scale)
    return weights / weights.sum(-1, keepdims=True)


def _pools(rng: np.random.Generator, labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """The images of each class, in random order."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]


def _cuts(shares: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Where to cut ``size`` images so that the pieces have these shares, rounded at the cuts so that none is lost."""
    running = np.cumsum(shares, axis=-1)
    return np.rint(running[..., :-1] / running[..., -1:] * size).astype(np.int64)


def _collect(by_class: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(pieces) for pieces in zip(*by_class, strict=True)]
