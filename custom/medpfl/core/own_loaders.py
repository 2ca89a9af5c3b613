"""What loaders of one's own must hold, and how it is seen: a part is the same at every reading, and there at each."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from medpfl.core.errors import UserError
from medpfl.core.reasons import Reason
from medpfl.core.seeding import drawn_apart

logger = logging.getLogger(__name__)


class LoaderError(UserError):
    """What is wrong with a loader of somebody's own, in words of this package that may leave a site."""


class LabelOutside(LoaderError):
    """A label for which the model has no output."""

    def __init__(self, outputs: int):
        super().__init__(OUTSIDE(outputs - 1, outputs))


LEFT_OUT = -100
"""A label that torch's cross-entropy leaves out."""


def require_inside(labels: Tensor, outputs: int) -> None:
    """LabelOutside if a label is not from 0 to ``outputs`` - 1, but those that the loss leaves out."""
    if not labels.numel():
        return
    whole = labels if labels.dtype == torch.uint8 else labels.long()  # masks are large, and torch has no uint16's least
    least, most = (int(end) for end in whole.aminmax())
    if least == LEFT_OUT:
        least = int(whole.where(whole != LEFT_OUT, 0).min())
    if least < 0 or most >= outputs:
        raise LabelOutside(outputs)


class OtherLabels(LoaderError):
    """As many labels a sample as the model has no outputs for."""

    def __init__(self, labels: int, outputs: int):
        super().__init__(OTHER_LABELS(labels, outputs))


class NotPlain(LoaderError):
    """A loader made for training is no source of statistics, and none of cases on which models are compared."""


OUTSIDE = Reason("a label lies outside 0 to {number}: the model has {number} outputs")
OTHER_LABELS = Reason("a batch has {number} labels a sample, and the model {number} outputs: one for each is needed")
NOT_PLAIN = Reason(
    "its training loader shuffles, augments or drops samples, and statistics need each sample once, as it is: give "
    "SiteLoaders a second loader of them, plain="
)
NOT_IN_ORDER = Reason(
    "its validation, test or plain loader gives other samples at another reading, and models are compared case by case"
    ": give each sample once, in one order, as it is (shuffle=False)"
)
USED_UP = Reason(
    "its train or plain loader gives nothing when it is read again, as an iterator does: give an iterable that begins "
    "anew each time, a DataLoader or a list"
)
NO_PAIR = Reason(
    "a batch of its loaders is not (inputs, labels), two tensors and no more: of a dictionary give these two"
)
NO_ROWS = Reason("a batch has not as many labels as inputs: of both the first dimension is the batch's")
EMPTY = Reason("a batch has no samples: leave it out, a loss has no mean over none")
ENDLESS = Reason(
    "one of its loaders has not ended after {number} batches, and has no length that says so: give one whose epoch "
    "ends, a part of the stream (itertools.islice) for each reading"
)
NOT_WHOLE = Reason("a batch has labels that are no whole numbers: mixed or smoothed ones are not trained on")
SEVERAL = Reason("a batch has several labels a sample, and the task one class: several are --task multi-label")
NARROW_INPUTS = Reason(
    "a batch has {bool|uint8|int8|int16} inputs: networks take floating point, scaled as training wants it"
)
BALANCED = Reason("loaders of one's own draw their samples themselves, so sampling=balanced cannot: balance them there")
_NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Kinds of numbers that images are stored in and no layer takes."""
_FAR = 100
"""Beyond it lie pixels from 0 to 255 and Hounsfield units that nobody has scaled, and next to nothing that was."""
_MOST_UNTOLD = 100_000
"""Batches in an epoch of a loader that does not tell of more; one of a stream without an end has more."""


def pairs(loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """A loader's batches; LoaderError at the first that no network could take, or where there is no end of them."""
    return map(_pair, _ending(loader))


def _length(thing: Iterable[Any] | None) -> int | None:
    try:
        return len(thing)  # type: ignore[arg-type]
    except Exception:  # torch's own over a stream raises TypeError, and somebody else's may raise anything
        return None


def _ending(loader: Iterable[Any]) -> Iterator[Any]:
    most = max(_length(loader) or 0, _MOST_UNTOLD)
    for number, batch in enumerate(loader):
        if number == most:
            raise LoaderError(ENDLESS(most))
        yield batch


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(one, Tensor) for one in batch)):
        raise LoaderError(NO_PAIR())
    inputs, labels = batch
    if inputs.dtype in _NARROW:
        kind = str(inputs.dtype).removeprefix("torch.")
        raise LoaderError(NARROW_INPUTS(kind))
    if not (inputs.dim() and labels.dim() and len(inputs) == len(labels)):
        raise LoaderError(NO_ROWS())
    if not len(inputs):
        raise LoaderError(EMPTY())
    if labels.is_complex() or (labels.is_floating_point() and not torch.equal(labels, labels.trunc())):
        raise LoaderError(NOT_WHOLE())
    return inputs, labels


def heed_range(inputs: Tensor) -> None:
    """Says in the log where inputs of somebody's own are far larger than networks train well with.

    Args:
        inputs: some of a site's.
    """
    if inputs.is_floating_point() and inputs.numel() and (reach := float(inputs.abs().max())) > _FAR:
        logger.warning("inputs reach %.3g, and networks train well on values about -1 to 1: scale them", reach)


def told(loader: Iterable[Any]) -> int | None:
    """How many samples torch's own loader yields in an epoch; None where that depends on what it reads."""
    if not (isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler):
        return None
    if loader.collate_fn is not default_collate or isinstance(loader.dataset, IterableDataset):
        return None
    drawn = _length(loader.batch_sampler.sampler)
    if drawn is None or not loader.batch_sampler.drop_last:
        return drawn
    return drawn - drawn % loader.batch_sampler.batch_size


def number_of_batches(loader: Iterable[Any]) -> int:
    """In an epoch. A loader that does not tell is :func:`looked_at` for it."""
    length = _length(loader)
    if length is not None:
        return length
    with looked_at():
        return sum(1 for _ in _ending(loader))


def varies(loader: Iterable[Any], batches: int | None = None) -> bool:
    """Whether it gives other samples each time, or in another order, :func:`looked_at`.

    Args:
        loader: it is read twice; no further than its first batch where that differs.
        batches: how many of its first are looked at; by default all.
    """
    with looked_at():
        return any(_differs(loader, number) for number in dict.fromkeys((1, batches)))


def _differs(loader: Iterable[Any], batches: int | None) -> bool:
    first = [_digest(batch) for batch in islice(pairs(loader), batches)]
    return any(one != two for one, two in zip_longest(first, map(_digest, islice(pairs(loader), batches))))


@contextmanager
def looked_at() -> Iterator[None]:
    """What loaders draw meanwhile from the global generators of torch, numpy and Python moves no other numbers."""
    states = np.random.get_state(), random.getstate()
    try:
        with drawn_apart():
            yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])


def _digest(batch: tuple[Tensor, Tensor]) -> bytes:
    """Of inputs and labels."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in batch:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.digest()


def used_up(loader: Iterable[Any] | None) -> bool:
    """Whether it gives nothing, read again; not whether there is none."""
    return loader is not None and told(loader) is None and next(iter(loader), None) is None


def drops(loader: Iterable[Any]) -> bool:
    """Whether it leaves a last batch out that is not full, or may where nobody knows the length."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return bool(getattr(loader, "drop_last", False))
    batches = getattr(loader, "batch_sampler", None)
    if not getattr(batches, "drop_last", False):
        return False
    drawn, size = _length(getattr(batches, "sampler", None)), getattr(batches, "batch_size", None)
    return drawn is None or not size or drawn % size > 0
