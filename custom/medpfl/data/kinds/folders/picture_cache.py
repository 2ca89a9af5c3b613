"""A centre's pictures as one tensor, decoded once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import TornFile, UserError
from medpfl.core.statefile import read_state, write_state
from medpfl.data.kinds.folders.layout import Picture
from medpfl.data.kinds.folders.picture_file import Reading, read_picture
from medpfl.data.places import private_folder

_VERSION = 2
"""Part of every key; a change of reading that changes its output changes this number."""

log = logging.getLogger(__name__)


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
    file = private_folder(cache) / f"{_key(pictures, reading)}.safetensors"
    try:
        return read_state(file)[0]["images"]
    except (FileNotFoundError, KeyError):
        pass
    except TornFile:
        log.warning("a damaged file of the cache is made again: %s", file)
    # Pillow decodes and resizes outside the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = torch.from_numpy(np.stack(list(pool.map(lambda p: read_picture(p.file, reading), pictures))))
    try:
        write_state(file, {"images": images}, durable=False)
    except OSError as error:
        raise UserError(f"{file}: the cache cannot be written: {error.strerror}") from None
    return images


def _key(pictures: Sequence[Picture], reading: Reading) -> str:
    import PIL

    try:
        states = [(str(p.file.resolve()), (s := p.file.stat()).st_size, s.st_mtime_ns) for p in pictures]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    text = json.dumps([_VERSION, PIL.__version__, reading.model_dump_json(exclude={"patient", "train_counts"}), states])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
