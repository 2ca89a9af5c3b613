"""What loaders of one's own must hold, and how it is seen: a part is the same at every reading, and there at each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from medpfl.core.errors import UserError


class LoaderError(UserError):
    """What is wrong with a loader of somebody's own, in words of this package that may leave a site."""


class LabelOutside(LoaderError):
    """A label for which the model has no output."""

    def __init__(self, outputs: int):
        super().__init__(f"a label lies outside 0 to {outputs - 1}: the model has {outputs} outputs")


class NotPlain(LoaderError):
    """A loader made for training is no source of statistics, and none of cases on which models are compared."""


NOT_PLAIN = (
    "its training loader shuffles, augments or drops samples, and statistics need each sample once, as it is: give "
    "SiteLoaders a second loader of them, plain="
)
NOT_IN_ORDER = (
    "its validation, test or plain loader gives other samples at another reading, and models are compared case by case"
    ": give each sample once, in one order, as it is (shuffle=False)"
)
USED_UP = (
    "its train or plain loader gives nothing when it is read again, as an iterator does: give an iterable that begins "
    "anew each time, a DataLoader or a list"
)


def told(loader: Iterable[Any]) -> int | None:
    """How many samples torch's own loader yields in an epoch; None where that depends on what it reads."""
    if not (isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler):
        return None
    if loader.collate_fn is not default_collate or isinstance(loader.dataset, IterableDataset):
        return None
    drawn = len(loader.batch_sampler.sampler)
    return drawn - drawn % loader.batch_sampler.batch_size if loader.batch_sampler.drop_last else drawn


def varies(loader: Iterable[Any]) -> bool:
    """Whether it begins in another way each time; what it draws for that moves no other random numbers."""
    with torch.random.fork_rng(devices=[]):
        first, again = (next(iter(loader), None) for _ in range(2))
    if first is None or again is None:
        return first is not again
    return not all(map(torch.equal, first, again))


def used_up(loader: Iterable[Any] | None) -> bool:
    """Whether it gives nothing, read again; not whether there is none."""
    return loader is not None and told(loader) is None and next(iter(loader), None) is None


def drops(loader: Iterable[Any]) -> bool:
    """Whether it leaves a last batch out that is not full."""
    batches = getattr(loader, "batch_sampler", None)
    return bool(getattr(batches, "drop_last", False)) and len(batches.sampler) % batches.batch_size > 0
