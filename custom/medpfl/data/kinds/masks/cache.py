"""A site's images with masks, decoded once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import UserError
from medpfl.core.masked_data import Spacing
from medpfl.core.version import version
from medpfl.data.decoded_cache import Made, kept, key_of
from medpfl.data.kinds.masks.classes_of import to_classes, values_in
from medpfl.data.kinds.masks.masked_npz import Arrays
from medpfl.data.kinds.masks.pair import Pair
from medpfl.data.kinds.masks.picture_pair import read_pair
from medpfl.data.kinds.masks.reading import Form, Reading

_VERSION = 6
"""Part of every key; a change of reading that changes its output changes this number."""
_LIBRARIES = ("pillow", "pydicom", "nibabel", "monai", "torch")
"""Another version of one may give other values."""

_NOT_READING = {"patient", "folders", "fold", "patch", "patches", "foreground"}
"""What changes no decoded image."""


@dataclass(frozen=True)
class Decoded:
    """An image and its mask as a network sees them.

    Attributes:
        image: (k, C, H, W) of k slices, one of a picture; or (C, D, H, W).
        mask: (k, H, W) or (D, H, W), uint8 classes.
        spacing: mm along slices, rows and columns; None where it is not known.
        values: of the mask's file.
        ct: whether it looks like CT; None of pictures.
    """

    image: Tensor
    mask: Tensor
    spacing: Spacing | None
    values: tuple[int, ...]
    ct: bool | None = None


def load_pairs(pairs: Sequence[Pair], form: Form, reading: Reading, count: int, cache: Path) -> list[Decoded]:
    """Reads images and masks, from the cache if they are in it as they are now (path, size, time of change).

    Pictures of a site are one file of the cache, volumes one each. Images of an npz file: :func:`rows_of`.

    Args:
        pairs: of one site.
        form: of what files.
        reading: how.
        count: number of classes.
        cache: folder for the tensors; made if need be, for no other user to read. Files' names are hashes.

    Raises:
        UserError: an image or a mask cannot be used, by name, or the cache cannot be written.
    """
    if form == "pictures":
        tensors, info = kept(cache, _key(pairs, reading, count), lambda: _pictures(pairs, reading, count))
        images, masks = tensors["images"], tensors["masks"]
        return [
            Decoded(images[row : row + 1], masks[row : row + 1], None, tuple(values))
            for row, values in enumerate(info["values"])
        ]
    found = []
    for pair in pairs:
        tensors, info = kept(cache, _key([pair], reading, count), lambda pair=pair: _volume(pair, reading, count))
        found.append(
            Decoded(tensors["image"], tensors["mask"], tuple(info["spacing"]), tuple(info["values"]), info["ct"])
        )
    return found


def _pictures(pairs: Sequence[Pair], reading: Reading, count: int) -> Made:
    # Pillow decodes and resizes outside the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images, masks, values = zip(*pool.map(lambda pair: read_pair(pair, reading, count), pairs), strict=True)
    tensors = {"images": torch.from_numpy(np.stack(images)), "masks": torch.from_numpy(np.stack(masks))}
    return tensors, {"values": values}


def _volume(pair: Pair, reading: Reading, count: int) -> Made:
    # NIfTI readers and MONAI take seconds to import, and what is in the cache needs none of them.
    from medpfl.data.kinds.masks.volume_pair import read_volume_pair

    volume = read_volume_pair(pair, reading, count)
    info = {"spacing": volume.spacing, "values": volume.values, "ct": volume.ct}
    return {"image": volume.image, "mask": volume.mask}, info


def rows_of(arrays: Arrays, pairs: Sequence[Pair], reading: Reading, count: int) -> list[Decoded]:
    """Images and masks of an npz file.

    Args:
        arrays: all of the file's.
        pairs: of one site.
        reading: how.
        count: number of classes.

    Raises:
        UserError: a mask has other values; the file is named.
    """
    if not pairs:
        return []
    rows = np.array([int(pair.id) for pair in pairs])
    images = torch.from_numpy(arrays.images[rows])
    raw = arrays.masks[rows]
    try:
        masks = torch.from_numpy(to_classes(raw, values_in(raw), count, reading.values))
    except ValueError as error:
        raise UserError(f"{pairs[0].image}: the mask {error}") from None
    spacings = [None] * len(rows) if arrays.spacing is None else [tuple(mm) for mm in arrays.spacing[rows].tolist()]
    return [
        Decoded(images[row : row + 1], masks[row : row + 1], spacing, values_in(raw[row]))
        for row, spacing in enumerate(spacings)
    ]


def _key(pairs: Sequence[Pair], reading: Reading, count: int) -> str:
    settings = reading.model_dump_json(exclude=_NOT_READING)
    files = (file.resolve() for pair in pairs for file in (pair.image, pair.mask))
    return key_of(files, _VERSION, *map(version, _LIBRARIES), settings, count)
