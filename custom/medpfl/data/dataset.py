"""A labelled set of images or small volumes in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from medpfl.core.site_data import Part


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Square images, or volumes of one size, with one label each or several.

    Attributes:
        name: the data set's name, e.g. ``organamnist``.
        images: (n, H, W) or (n, H, W, 3), or volumes (n, D, H, W), uint8.
        labels: (n,) int64 in 0..n_classes-1; or (n, n_classes), 1 there, 0 not there, -1 not known.
        split: (n,) int8, the official part: 0 train, 1 validation, 2 test.
        classes: class names; the label is the index, or the column.
        source: path of the file it was read from.
        md5: checksum of that file.
        site_ids: (n,) the hospital each image comes from, as text; None if the file does not say.
        patients: (n,) whose each image is at its hospital, as text; None if the file does not say.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    classes: list[str]
    source: str
    md5: str
    site_ids: np.ndarray | None = None
    patients: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return 3 if self.images.ndim == 4 and not self.volumes else 1

    @property
    def volumes(self) -> bool:
        """Whether the images are volumes."""
        return self.images.ndim == 4 and self.images.shape[3] != 3

    @property
    def several_labels(self) -> bool:
        """Whether an image may have several."""
        return self.labels.ndim == 2

    @property
    def whose(self) -> np.ndarray | None:
        """(n,) text, patients by names that set those of different hospitals apart; None where nobody is known."""
        if self.patients is None or self.site_ids is None:
            return self.patients
        return np.char.add(np.char.add(self.site_ids, "/"), self.patients)

    @cached_property
    def people(self) -> np.ndarray | None:
        """(n,) text, the same for images of one :func:`~medpfl.data.patients.person`; None where nobody is known."""
        from medpfl.data.patients import person

        if self.whose is None:
            return None
        names, rows = np.unique(self.whose, return_inverse=True)
        return np.array([person(name) for name in names.tolist()], dtype=str)[rows]

    def people_of(self, rows: np.ndarray) -> frozenset[str]:
        """Whose the chosen images are; where nobody is known each is a patient's of its own, by its number."""
        return frozenset(map(str, rows.tolist() if self.people is None else self.people[rows].tolist()))

    @property
    def strata(self) -> np.ndarray:
        """(n,) int64 by which partitions divide: the class; of several labels the rarest that an image has.

        An image without any is of a class of its own, the last.
        """
        if not self.several_labels:
            return self.labels
        there = self.labels == 1
        rarity = np.argsort(np.argsort(there.sum(0), kind="stable"), kind="stable")
        rarest = np.where(there, rarity, len(self.classes)).argmin(1)
        return np.where(there.any(1), rarest, len(self.classes))

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """How many of the chosen images have each class, (n_classes,)."""
        if self.several_labels:
            return (self.labels[rows] == 1).sum(0)
        return np.bincount(self.labels[rows], minlength=self.n_classes)

    @property
    def n_classes(self) -> int:
        """Number of classes, with those that no image belongs to."""
        return len(self.classes)

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return self.images.shape[2]

    @property
    def shape(self) -> int | tuple[int, int, int]:
        """Spatial size: the edge of a square, or (D, H, W)."""
        return tuple(self.images.shape[1:]) if self.volumes else self.size

    def images_chw(self, indices: np.ndarray) -> Tensor:
        """The chosen images as models take them: (k, C, H, W) or (k, 1, D, H, W) uint8, contiguous, a copy."""
        import torch

        chosen = self.images[np.asarray(indices, dtype=np.int64)]
        chosen = chosen[:, None] if self.channels == 1 else np.ascontiguousarray(chosen.transpose(0, 3, 1, 2))
        return torch.from_numpy(chosen)

    def persons_chosen(self, rows: Mapping[Part, np.ndarray], device: torch.device) -> dict[Part, Tensor]:
        """By part whose the chosen images are, (k,) int64 numbers; empty where nobody is known."""
        import torch

        if self.people is None:
            return {}
        return {part: torch.from_numpy(self._numbers[chosen]).long().to(device) for part, chosen in rows.items()}

    @cached_property
    def _numbers(self) -> np.ndarray:
        """(n,) a number for each of :attr:`people`."""
        return np.unique(self.people, return_inverse=True)[1]
