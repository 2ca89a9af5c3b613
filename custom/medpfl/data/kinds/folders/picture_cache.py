"""A centre's pictures as one tensor, decoded once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medpfl.core.version import version
from medpfl.data.decoded_cache import Made, kept, key_of
from medpfl.data.kinds.folders.layout import Picture
from medpfl.data.kinds.folders.picture_file import Reading, read_picture

_VERSION = 3
"""Part of every key; a change of reading that changes its output changes this number."""
_LIBRARIES = ("pillow", "pydicom")
"""Another version of one may give other values."""


def load_pictures(pictures: Sequence[Picture], reading: Reading, cache: Path) -> Tensor:
    """Reads pictures, from the cache if they are in it as they are now (path, size, time of change).

    Args:
        pictures: of one centre.
        reading: how.
        cache: folder for the tensors; made if need be, for no other user to read. The file's name is a hash.

    Returns:
        (n, C, size, size) uint8.

    Raises:
        UserError: a file cannot be read, by name, or the cache cannot be written.
    """

    def made() -> Made:
        # Pillow decodes and resizes outside the interpreter's lock.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            images = list(pool.map(lambda picture: read_picture(picture.file, reading), pictures))
        return {"images": torch.from_numpy(np.stack(images))}, {}

    settings = reading.model_dump_json(exclude={"patient", "train_counts"})
    key = key_of((p.file.resolve() for p in pictures), _VERSION, *map(version, _LIBRARIES), settings)
    return kept(cache, key, made)[0]["images"]
