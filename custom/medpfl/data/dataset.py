"""A labelled set of 2-D images in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = ("train", "validation", "test")
"""Names of the official parts; a split code is an index into it."""


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Square images with one label each.

    Attributes:
        name: the data set's name, e.g. ``organamnist``.
        images: (n, H, W) or (n, H, W, 3) uint8.
        labels: (n,) int64 in 0..n_classes-1.
        split: (n,) int8, the official part: 0 train, 1 validation, 2 test.
        classes: class names; the label is the index.
        source: path of the file it was read from.
        md5: checksum of that file.
        site_ids: (n,) the hospital each image comes from, as text; None if the file does not say.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    classes: list[str]
    source: str
    md5: str
    site_ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return 1 if self.images.ndim == 3 else self.images.shape[3]

    @property
    def n_classes(self) -> int:
        """Number of classes, with those that no image belongs to."""
        return len(self.classes)

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return self.images.shape[1]

    def images_chw(self, indices: np.ndarray) -> Tensor:
        """The chosen images as models take them: (k, C, H, W) uint8, contiguous, a copy."""
        import torch

        chosen = self.images[np.asarray(indices, dtype=np.int64)]
        chosen = chosen[:, None] if chosen.ndim == 3 else np.ascontiguousarray(chosen.transpose(0, 3, 1, 2))
        return torch.from_numpy(chosen)
