"""A site's data as training sees it: batches of model inputs and labels, already on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from medpfl.core.balanced import balanced_order, counts_of, repeated
from medpfl.core.edge_sums import edge_sums
from medpfl.core.own_loaders import (
    BALANCED,
    NOT_IN_ORDER,
    NOT_PLAIN,
    SEVERAL,
    USED_UP,
    LoaderError,
    NotPlain,
    drops,
    heed_range,
    looked_at,
    number_of_batches,
    pairs,
    require_inside,
    told,
    used_up,
    varies,
)
from medpfl.core.seeding import Order, changes_of, is_even, seed_global

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
"""A data set's official split names them by their places."""
Batch = tuple[Tensor, Tensor]
_IMAGES = 256
"""Images in a batch that is looked at and not trained on; a bag counts as many as it has."""
_VALUES = 1 << 23
"""Numbers in it, of whole volumes too: of a layer with 32 times as many some 2 GB in float64."""


class SiteData(Protocol):
    """What training and evaluation ask of a site's data."""

    reproducible: bool
    """Whether all randomness comes from the generator it is given, so that sites may run side by side."""

    images_per_sample: int
    """1, or the number of slices where a sample is a bag of them."""

    def samples(self, part: Part) -> int:
        """Number of samples of a part; 0 if the site has none."""

    def training_batches(
        self, batch_size: int, generator: torch.Generator, *, balanced: bool = False
    ) -> Iterator[Batch]:
        """One epoch in random order: inputs (B, C, ...) float32, labels (B,) int64.

        An :class:`~medpfl.core.seeding.Order` says more of it than a plain generator does.

        Balanced: as many samples, drawn with replacement so that every class is as frequent as every other.
        """

    def batches_in_epoch(self, batch_size: int, *, repeats: bool = False) -> int:
        """How many :meth:`training_batches` gives.

        Repeats: balanced, in an order that is the same in every round.
        """

    def batches(self, part: Part, batch_size: int) -> Iterator[Batch]:
        """A part in fixed order, each sample once, unaugmented."""

    def class_counts(self, classes: int) -> Tensor:
        """How many training samples each class has, (classes,) int64, on the device.

        Not those whose label is below 0, which a loss may leave out.
        """

    def digest(self) -> bytes | None:
        """Changes when the samples do, or which part they are in; None if that is not known."""

    def bags(self, part: Part) -> Tensor | None:
        """For each sample of a part, in the order of :meth:`batches`, the number of the patient it belongs to.

        (n,) int64 from 0; None where every sample stands for itself.
        """

    def owners(self, part: Part) -> Tensor | None:
        """For each sample of a part, in the order of :meth:`batches`, the number of the person it comes from.

        (n,) int64; None where that is not known. Unlike :meth:`bags`, a person has one number whatever the labels.
        """


@dataclass
class ImageTensors:
    """Images, slices or bags of slices in memory, and brought to float32 in [-1, 1] on the device, batch by batch.

    Attributes:
        images: by part, (n, C, H, W) or bags (n, S, C, H, W), on the device; uint8, or floating in [-1, 1] already.
        labels: by part, (n,) int64, on the device.
        patients: by part, (n,) int64, which samples are one patient's, from 0 without a gap (what a function of the
            user's own returns is numbered so); empty where every sample stands for itself.
        persons: by part, (n,) int64, whose the samples are where ``patients`` does not say it, since a patient with two
            labels is two of them.
    """

    images: Mapping[Part, Tensor]
    labels: Mapping[Part, Tensor]
    patients: Mapping[Part, Tensor] = field(default_factory=dict)
    persons: Mapping[Part, Tensor] = field(default_factory=dict)
    reproducible: bool = field(default=True, init=False)

    @property
    def images_per_sample(self) -> int:
        """See :class:`SiteData`."""
        return self.images["train"].shape[1] if self.images["train"].ndim == 5 else 1

    @property
    def values_per_sample(self) -> int:
        """Numbers in a sample's images."""
        return prod(self.images["train"].shape[1:])

    def samples(self, part: Part) -> int:
        """See :class:`SiteData`."""
        return len(self.labels[part])

    def training_batches(
        self, batch_size: int, generator: torch.Generator, *, balanced: bool = False
    ) -> Iterator[Batch]:
        """See :class:`SiteData`. A last batch of a single image joins the batch before it: batch norm needs two."""
        images, labels = self.images["train"], self.labels["train"]
        if balanced:
            order = balanced_order(labels.cpu(), generator)
        else:
            order = torch.randperm(self.samples("train"), generator=generator)
        there, begin = order.to(images.device), 0  # at once: a copy for each batch would make the device wait
        for chosen in batches_of(order, batch_size, generator):
            places = there[begin : begin + len(chosen)]
            begin += len(chosen)
            yield scale(images[places]), labels[places]

    def samples_in_epoch(self, *, repeats: bool = False) -> int:
        """How many are trained on; as in :meth:`batches_in_epoch`."""
        return repeated(self.labels["train"]) if repeats else self.samples("train")

    def batches_in_epoch(self, batch_size: int, *, repeats: bool = False) -> int:
        """See :class:`SiteData`."""
        return len(batch_sizes(self.samples_in_epoch(repeats=repeats), batch_size))

    def batches(self, part: Part, batch_size: int) -> Iterator[Batch]:
        """See :class:`SiteData`."""
        for x, y in zip(self.images[part].split(batch_size), self.labels[part].split(batch_size), strict=True):
            yield scale(x), y

    def class_counts(self, classes: int) -> Tensor:
        """See :class:`SiteData`."""
        return counts_of(self.labels["train"], classes)

    def digest(self) -> bytes:
        """See :class:`SiteData`: of labels, patients and every image's :func:`edge_sums`."""
        found = hashlib.blake2b(digest_size=16)
        for part in sorted(self.labels):
            for tensor in (self.labels[part], self.patients.get(part), edge_sums(self.images[part])):
                if tensor is not None:
                    found.update(tensor.cpu().contiguous().numpy().tobytes())
        return found.digest()

    def bags(self, part: Part) -> Tensor | None:
        """See :class:`SiteData`."""
        return self.patients.get(part)

    def owners(self, part: Part) -> Tensor | None:
        """See :class:`SiteData`."""
        return self.persons.get(part, self.patients.get(part))


@dataclass
class SiteLoaders:
    """The user's own loaders: any iterable of (inputs, labels) batches a part, e.g. a torch ``DataLoader``.

    Attributes:
        train: training batches, in a new order at every iteration.
        validation: used to select the round and to choose between models, which are compared case by case: the same
            samples in the same order at every reading; may be empty.
        test: likewise; read at the end; may be empty.
        plain: the training samples in a fixed order, each once and as it is: what statistics of a site's data are taken
            from. Not needed where ``train`` is that itself.
        device: where batches are moved; filled in by the engine.
        one_class: whether the task has one class a sample; likewise, None where nobody said it.
        outputs: of the network, which labels must have one of; likewise (:mod:`medpfl.site.outputs`).
    """

    train: Iterable[Batch]
    validation: Iterable[Batch] = ()
    test: Iterable[Batch] = ()
    plain: Iterable[Batch] | None = None
    device: torch.device = field(default=torch.device("cpu"), init=False)
    one_class: bool | None = field(default=None, init=False)
    outputs: int | None = field(default=None, init=False)
    reproducible: bool = field(default=False, init=False)
    images_per_sample: int = field(default=1, init=False)
    _heeded: bool = field(default=False, init=False, repr=False)
    _labels: Tensor | None = field(default=None, init=False, repr=False)
    _batches: int | None = field(default=None, init=False, repr=False)
    _samples: dict[Part, int] = field(default_factory=dict, init=False, repr=False)
    _problem: dict[Part, str] = field(default_factory=dict, init=False, repr=False)

    def samples(self, part: Part) -> int:
        """See :class:`SiteData`: of an epoch, which is read for it unless the loader tells.

        Raises:
            NotPlain: one that is to be in order is not, or one of training samples is used up by being read.
        """
        if part not in self._samples:
            with looked_at():
                self._samples[part] = self._looked_at(part)
        return self._samples[part]

    def _looked_at(self, part: Part) -> int:
        loader = getattr(self, part)
        in_order = self.plain if part == "train" else loader
        if in_order is not None and varies(in_order, 1):  # all of it only where it is read
            raise NotPlain(NOT_IN_ORDER())
        number = told(loader)
        if number is None:
            number = sum(len(y) for _, y in pairs(loader))
        if part == "train" and number and any(map(used_up, (loader, in_order))):
            raise NotPlain(USED_UP())
        return number

    def training_batches(
        self, batch_size: int, generator: torch.Generator, *, balanced: bool = False
    ) -> Iterator[Batch]:
        """See :class:`SiteData`. Batches are the loader's; each epoch's order derives from the generator."""
        if balanced:
            raise LoaderError(BALANCED())
        seed_global(int(torch.randint(2**62, (), generator=changes_of(generator))))
        return _numbered(self._moved(self.train), generator)

    def batches_in_epoch(self, batch_size: int, *, repeats: bool = False) -> int:
        """See :class:`SiteData`: the loader's own, which is read for it once unless it tells."""
        if self._batches is None:
            self._batches = number_of_batches(self.train)
        return self._batches

    def batches(self, part: Part, batch_size: int) -> Iterator[Batch]:
        """See :class:`SiteData`.

        Raises:
            NotPlain: the loader gives other samples at another reading; or these are the training samples, there is no
                ``plain``, and ``train`` shuffles, augments or drops.
        """
        loader = self.plain if part == "train" and self.plain is not None else getattr(self, part)
        if part not in self._problem:
            made_for_training = part == "train" and self.plain is None
            why = NOT_PLAIN if made_for_training else NOT_IN_ORDER
            self._problem[part] = why() if varies(loader) or (made_for_training and drops(loader)) else ""
        if self._problem[part]:
            raise NotPlain(self._problem[part])
        return self._moved(loader)

    def _moved(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        for x, y in pairs(loader):
            if not self._heeded:
                heed_range(x)
                self._heeded = True
            if self.outputs:
                require_inside(y, self.outputs)
            labels = y.to(self.device, torch.long, non_blocking=True)
            # A column of one, as MedMNIST's labels have it.
            labels = labels.squeeze(1) if labels.dim() == 2 and labels.shape[1] == 1 else labels
            if self.one_class and labels.dim() != 1:
                raise LoaderError(SEVERAL())
            kind = torch.float32 if x.dtype == torch.float64 else x.dtype  # as numpy's arrays become tensors
            yield x.to(self.device, kind, non_blocking=True), labels

    def some_inputs(self) -> Tensor | None:
        """Those of a batch of whichever part has one; None if none has. A loader that cannot be read again says so."""
        parts: tuple[Part, ...] = ("validation", "test", "train")
        return next((x for part in parts if self.samples(part) for x, _ in self._moved(getattr(self, part))), None)

    def class_counts(self, classes: int) -> Tensor:
        """See :class:`SiteData`: of what the loader yields in an epoch, which is read once for that."""
        if self._labels is None:
            with looked_at():
                self._labels = torch.cat([y.flatten() for _, y in self._moved(self.train)])
        return counts_of(self._labels, classes)

    def digest(self) -> None:
        """See :class:`SiteData`: a loader may give other samples every time."""

    def bags(self, part: Part) -> Tensor | None:
        """See :class:`SiteData`: every sample stands for itself."""
        return None

    def owners(self, part: Part) -> Tensor | None:
        """See :class:`SiteData`: a loader does not tell."""
        return None


def endless_batches(images: Tensor, labels: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Batches of a set, as networks take them (:func:`scale`), over and over; each pass has a random order of its own.

    Args:
        images: (n, ...), of 8 bits or floating.
        labels: (n,).
        batch_size: of each batch but a pass's last.
        generator: of the orders, on the CPU.
    """
    while True:
        for chosen in torch.randperm(len(labels), generator=generator).to(labels.device).split(batch_size):
            yield scale(images[chosen]), labels[chosen]


def looked_at_once(data: SiteData) -> int:
    """Samples in a batch that is looked at and not trained on."""
    return most_at_once(getattr(data, "values_per_sample", 0), data.images_per_sample)


def most_at_once(values: int, images: int = 1) -> int:
    """Samples of so many numbers, and images, in such a batch; of one's own loaders nobody knows the numbers: 0."""
    return max(1, min(_IMAGES // images, _VALUES // max(1, values)))


def labels_of(data: SiteData, part: Part) -> Tensor:
    """The labels of a part, in the order of :meth:`SiteData.batches`; a loader is read once for them."""
    if isinstance(data, ImageTensors):
        return data.labels[part]
    with looked_at():
        return torch.cat([y for _, y in data.batches(part, 256)])


def _numbered(batches: Iterable[Batch], order: torch.Generator) -> Iterator[Batch]:
    """The order hears of samples of which a loader does not tell which they are: others than all before."""
    for x, y in batches:
        if isinstance(order, Order):
            order.batch = torch.arange(order.given, order.given + len(y))
            order.given += len(y)
        yield x, y


def batches_of(samples: Tensor, batch_size: int, order: torch.Generator) -> Iterator[Tensor]:
    """Numbers of samples in their order, on the CPU, in batches of which an Order hears."""
    for chosen in samples.split(batch_sizes(len(samples), batch_size, even=is_even(order))):
        if isinstance(order, Order):
            order.batch = chosen
        yield chosen


def batch_sizes(samples: int, batch_size: int, *, even: bool = False) -> list[int]:
    """Sizes of an epoch's batches: full ones, the remainder, but never a remainder of one.

    Even: as many, which differ by one at most.
    """
    if even:
        count = len(batch_sizes(samples, batch_size))
        return [samples // count + (k < samples % count) for k in range(count)]
    full, rest = divmod(samples, batch_size)
    if rest == 1 and full:
        return [batch_size] * (full - 1) + [batch_size + 1]
    return [batch_size] * full + [rest] * (rest > 0)


def padded(images: Tensor, edge: int) -> Tensor:
    """Square images (..., H, H) with black around, (..., edge, edge)."""
    size = images.shape[-1]
    before = (edge - size) // 2
    return pad(images, (before, edge - size - before) * 2) if edge != size else images


def scale(images: Tensor) -> Tensor:
    """uint8 pixels to float32 in [-1, 1]; with raw pixels the first layer's statistics would rule all others'."""
    if images.is_floating_point():
        return images.to(torch.float32)
    return images.to(torch.float32).sub_(127.5).div_(127.5)
