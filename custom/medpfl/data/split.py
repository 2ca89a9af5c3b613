"""Divides each site's images into training, validation and test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed, generator


@dataclass(frozen=True, eq=False)
class SiteIndices:
    """One site's images, as ascending int64 indices into the data set; the parts share none."""

    name: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def __len__(self) -> int:
        return len(self.train) + len(self.validation) + len(self.test)


def split_sites(
    parts: Sequence[np.ndarray], fractions: Sequence[float], train_fraction: float, seed: int
) -> list[SiteIndices]:
    """Shuffles each site's images, each with a seed of its own, and divides them.

    Sizes are rounded down, and the last part whose fraction is not 0 takes what remains: 0.5, 0, 0.5 of 2,941 images
    are 1,470 for training and 1,471 for test. If the fractions sum to less than 1, the rest is not used.

    Args:
        parts: indices of each site, which become ``site-1``, ``site-2``, ...
        fractions: shares for training, validation and test.
        train_fraction: share of the training part that is kept, at least one image; a smaller share is part of a
            larger one, and validation and test do not depend on it.
        seed: the run's seed.

    Raises:
        UserError: fractions that are negative, without training, or sum to more than 1.
    """
    require_fractions(fractions)
    return [
        _split(f"site-{number}", indices, fractions, train_fraction, seed)
        for number, indices in enumerate(parts, start=1)
    ]


def fewest_with_training(fractions: Sequence[float]) -> int:
    """How many images a site needs, so that :func:`split_sites` leaves it one for training.

    Raises:
        UserError: see :func:`split_sites`.
    """
    require_fractions(fractions)
    return math.ceil((1 - 1e-9) / fractions[0])


def split_own(name: str, total: int, fractions: Sequence[float], train_fraction: float, seed: int) -> SiteIndices:
    """Divides images 0 to ``total`` - 1, all of one site, as :func:`split_sites` does; the site's name is in the seed.

    Raises:
        UserError: see :func:`split_sites`.
    """
    require_fractions(fractions)
    return _split(name, np.arange(total), fractions, train_fraction, seed)


def official_parts(name: str, split: np.ndarray, train_fraction: float, seed: int) -> SiteIndices:
    """The official parts of a data set that is all one site's; ``split`` has 0, 1 or 2 for each image."""
    train, validation, test = (np.flatnonzero(split == code) for code in range(3))
    return _site(name, _shuffled(train, seed, name), validation, test, train_fraction)


def rows_to_pretrain_on(total: int, share: float, seed: int) -> Tensor:
    """Which of all sites' training samples, taken together, the model f is trained on; at least one, in random order.

    Args:
        total: how many there are.
        share: of them.
        seed: the run's seed.
    """
    order = torch.randperm(total, generator=generator(seed, "pretraining", "sample"))
    return order[: max(1, round(share * total))]


def require_fractions(fractions: Sequence[float]) -> None:
    """UserError unless these are shares for training, validation and test, the first above 0."""
    if len(fractions) != 3 or min(fractions) < 0 or sum(fractions) > 1 + 1e-9 or not fractions[0] > 0:
        raise UserError(
            f"fractions {tuple(fractions)}: training, validation and test need shares that are not negative and sum "
            "to at most 1, with some for training, e.g. 0.5, 0.1, 0.4"
        )


def require_train_fraction(share: float) -> None:
    """UserError unless a share of the training part can be kept."""
    if not 0 < share <= 1:
        raise UserError(f"--train-fraction {share}: must be above 0 and at most 1")


def _split(name: str, indices: np.ndarray, fractions: Sequence[float], train_fraction: float, seed: int) -> SiteIndices:
    order = _shuffled(indices, seed, name)
    pieces = np.split(order, np.cumsum(_sizes(len(order), fractions)))
    return _site(name, *pieces[:3], train_fraction)


def join_official(by_split: Sequence[Sequence[np.ndarray]], train_fraction: float, seed: int) -> list[SiteIndices]:
    """Sites whose three parts were drawn from the official parts, given as one list of sites for each part."""
    return [
        _site(f"site-{k}", _shuffled(train, seed, f"site-{k}"), validation, test, train_fraction)
        for k, (train, validation, test) in enumerate(zip(*by_split, strict=True), start=1)
    ]


def _site(name: str, train: np.ndarray, validation: np.ndarray, test: np.ndarray, train_fraction: float) -> SiteIndices:
    require_train_fraction(train_fraction)
    kept = train[: max(1, _floor(train_fraction * len(train)))]
    return SiteIndices(name, np.sort(kept), np.sort(validation), np.sort(test))


def _shuffled(indices: np.ndarray, seed: int, site: str) -> np.ndarray:
    return np.random.default_rng(derive_seed(seed, site, "split")).permutation(indices)


def _sizes(total: int, fractions: Sequence[float]) -> list[int]:
    sizes = [_floor(fraction * total) for fraction in fractions]
    last = max(k for k, fraction in enumerate(fractions) if fraction > 0)
    sizes[last] = _floor(min(1.0, sum(fractions)) * total) - sum(sizes[:last])
    return sizes


def _floor(value: float) -> int:
    # 0.29 * 100 is 28.999999999999996 in floating point, and means 29.
    return int(value + 1e-9)
