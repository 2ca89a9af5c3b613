"""A site's images with masks as training sees them: pictures or slices in one tensor, or volumes of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from medpfl.core.edge_sums import edge_sums
from medpfl.core.seeding import changes_of
from medpfl.core.site_data import Batch, ImageTensors, Part, SiteData, batch_sizes, batches_of, scale

Spacing = tuple[float, float, float]


class Case(NamedTuple):
    """What is judged as a whole: a patient's slices, one above the other, a volume, or a single picture.

    Attributes:
        images: the network's inputs, (S, C, H, W) of S slices or (1, C, D, H, W).
        mask: classes, (S, H, W) or (D, H, W), whole numbers from 0, the background.
        spacing: millimetres from slice to slice, row to row and column to column; None where they are not known.
    """

    images: Tensor
    mask: Tensor
    spacing: Spacing | None


class MaskedData(SiteData, Protocol):
    """What a segmentation asks of a site's data besides; labels are masks, (B, H, W) or (B, D, H, W)."""

    window: tuple[int, ...] | None
    """The patch that the network takes of a volume, (D, H, W); None where it takes images whole."""

    def cases(self, part: Part) -> Iterator[Case]:
        """A part's cases in fixed order, unaugmented, on the device."""


@dataclass
class MaskedImages(ImageTensors):
    """Pictures or slices of one size; ``labels`` are their masks, (n, H, W) uint8.

    ``patients`` say which are one case's, (n,) from 0 without a gap, never falling: a case's slices lie together and in
    order (what a function of the user's own returns is numbered so). Without them every picture is a case of its own.

    Attributes:
        spacings: by part, of each case; empty where they are not known.
    """

    spacings: Mapping[Part, Sequence[Spacing]] = field(default_factory=dict)
    window: tuple[int, ...] | None = field(default=None, init=False)

    def cases(self, part: Part) -> Iterator[Case]:
        """See :class:`MaskedData`."""
        images, masks, numbers = self.images[part], self.labels[part], self.patients.get(part)
        known = self.spacings.get(part)
        counts = [1] * len(masks) if numbers is None else torch.bincount(numbers).tolist()
        ends = torch.tensor([0, *counts]).cumsum(0).tolist()
        for number, (start, end) in enumerate(pairwise(ends)):
            yield Case(scale(images[start:end]), masks[start:end], known[number] if known else None)

    def class_counts(self, classes: int) -> Tensor:
        """Pixels of each class in the training masks, (classes,) int64."""
        return torch.bincount(self.labels["train"].flatten(), minlength=classes)


@dataclass
class MaskedVolumes:
    """Volumes of any size, of which training takes patches and evaluation takes all.

    An epoch takes ``patches`` of every training volume, in random order. A patch is centred on a random voxel of a
    structure with probability ``foreground`` (where the volume has one), else lies anywhere. It never leaves the
    volume, and a volume smaller than the patch is padded behind with its least value.

    Attributes:
        images: by part, (C, D, H, W) each, floating and normalised.
        masks: by part, (D, H, W) uint8 each.
        window: the patch, (D, H, W).
        patches: of a volume in an epoch.
        foreground: see above.
        spacings: by part, of each volume; empty where they are not known.
        persons: by part, (n,) int64, whose the volumes are.
        device: where batches go; the volumes stay where they are.
    """

    images: Mapping[Part, Sequence[Tensor]]
    masks: Mapping[Part, Sequence[Tensor]]
    window: tuple[int, ...]
    patches: int = 4
    foreground: float = 0.5
    spacings: Mapping[Part, Sequence[Spacing]] = field(default_factory=dict)
    persons: Mapping[Part, Tensor] = field(default_factory=dict)
    device: torch.device = field(default=torch.device("cpu"))
    reproducible: bool = field(default=True, init=False)
    images_per_sample: int = field(default=1, init=False)

    @cached_property
    def _structures(self) -> list[Tensor]:
        """Of each training volume the flat places of voxels that are not background, in half of nonzero's memory."""
        return [
            mask.flatten().nonzero().flatten().to(torch.int32 if mask.numel() < 2**31 else torch.int64)
            for mask in self.masks["train"]
        ]

    def samples(self, part: Part) -> int:
        """See :class:`SiteData`: volumes."""
        return len(self.masks[part])

    def training_batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """See :class:`SiteData`: patches (B, C, *window) and their masks."""
        order = torch.randperm(self.samples("train"), generator=generator).repeat_interleave(self.patches)
        order = order[torch.randperm(len(order), generator=generator)]
        for chosen in batches_of(order, batch_size, generator):
            pieces = [self._patch(volume, changes_of(generator)) for volume in chosen.tolist()]
            images, masks = (
                torch.stack(tensors).to(self.device, non_blocking=True) for tensors in zip(*pieces, strict=True)
            )
            yield scale(images), masks

    @property
    def values_per_sample(self) -> int:
        """Numbers in a patch."""
        some = next(
            (image for images in self.images.values() for image in images), ()
        )  # centres that test train on none
        return prod(self.window) * len(some)

    def samples_in_epoch(self, *, repeats: bool = False) -> int:
        """Patches that are trained on; nothing balances them."""
        return self.samples("train") * self.patches

    def batches_in_epoch(self, batch_size: int, *, repeats: bool = False) -> int:
        """See :class:`SiteData`: of patches."""
        return len(batch_sizes(self.samples_in_epoch(), batch_size))

    def _patch(self, volume: int, generator: torch.Generator) -> Batch:
        image, mask = self.images["train"][volume], self.masks["train"][volume]
        draw = torch.rand(1 + len(self.window), generator=generator)
        places = self._structures[volume]
        if draw[0] < self.foreground and len(places):
            flat = places[torch.randint(len(places), (), generator=generator)]
            centre = torch.stack(torch.unravel_index(flat.long(), mask.shape)).cpu()
            starts = centre - torch.tensor(self.window) // 2
        else:
            starts = (draw[1:] * (torch.tensor(mask.shape) - torch.tensor(self.window) + 1).clamp(min=1)).long()
        room = (torch.tensor(mask.shape) - torch.tensor(self.window)).clamp(min=0)
        starts = torch.minimum(starts.clamp(min=0), room).tolist()
        where = tuple(slice(start, start + length) for start, length in zip(starts, self.window, strict=True))
        lack = [length - side for length, side in zip(self.window, mask[where].shape, strict=True)]
        patch, classes = image[(slice(None), *where)], mask[where]
        if any(lack):
            behind = [number for short in reversed(lack) for number in (0, short)]
            patch, classes = pad(patch, behind, value=float(image.min())), pad(classes, behind)
        return patch, classes

    def batches(self, part: Part, batch_size: int) -> Iterator[Batch]:
        """See :class:`SiteData`: patches that lie side by side and cover every volume."""
        for image, mask in zip(self.images[part], self.masks[part], strict=True):
            images, masks = self._tiles(image, float(image.min())), self._tiles(mask[None], 0)[:, 0]
            for x, y in zip(images.split(batch_size), masks.split(batch_size), strict=True):
                yield scale(x.to(self.device)), y.to(self.device)

    def _tiles(self, volume: Tensor, behind_it: float) -> Tensor:
        """(C, D, H, W) as (n, C, *window), with a value behind the last ones."""
        behind = [
            n for side, edge in zip(volume.shape[:0:-1], self.window[::-1], strict=True) for n in (0, -side % edge)
        ]
        tiles = pad(volume, behind, value=behind_it)
        for dim, edge in enumerate(self.window, start=1):
            tiles = tiles.unfold(dim, edge, edge)
        return tiles.flatten(1, len(self.window)).transpose(0, 1)

    def cases(self, part: Part) -> Iterator[Case]:
        """See :class:`MaskedData`."""
        known = self.spacings.get(part)
        for number, (image, mask) in enumerate(zip(self.images[part], self.masks[part], strict=True)):
            x, y = scale(image.to(self.device))[None], mask.to(self.device)
            yield Case(x, y, known[number] if known else None)

    def class_counts(self, classes: int) -> Tensor:
        """Voxels of each class in the training masks, (classes,) int64."""
        found = torch.zeros(classes, dtype=torch.int64)
        for mask in self.masks["train"]:
            found += torch.bincount(mask.flatten(), minlength=classes).cpu()
        return found.to(self.device)

    def digest(self) -> bytes:
        """See :class:`SiteData`: of masks and every volume's :func:`~medpfl.core.edge_sums.edge_sums`."""
        found = hashlib.blake2b(digest_size=16)
        for part in sorted(self.masks):
            for image, mask in zip(self.images[part], self.masks[part], strict=True):
                for tensor in (edge_sums(image.contiguous()[None]), torch.tensor(mask.shape), mask):
                    found.update(tensor.cpu().contiguous().numpy().tobytes())
        return found.digest()

    def bags(self, part: Part) -> None:
        """See :class:`SiteData`: every volume stands for itself."""

    def owners(self, part: Part) -> Tensor | None:
        """See :class:`SiteData`."""
        return self.persons.get(part)
