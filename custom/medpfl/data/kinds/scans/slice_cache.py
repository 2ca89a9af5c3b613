"""Volumes as slices, decoded once: MONAI's PersistentDataset with files that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import monai
import torch
from monai.data import PersistentDataset
from torch import Tensor

from medpfl.core.errors import UserError
from medpfl.core.statefile import TornFile, read_state, write_state
from medpfl.data.kinds.scans.preprocessing import Preprocessing, pipeline
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.kinds.scans.transforms import evenly
from medpfl.data.places import private_folder

_VERSION = 1
"""Part of every key; a change of the pipeline that changes its output changes this number."""

log = logging.getLogger(__name__)


class ScanCache(PersistentDataset):
    """MONAI's dataset with another way to keep files.

    MONAI's writes beside its folder and moves, which across file systems leaves half a file when interrupted, and
    stops at most damaged files. These are written in place or not at all, with a checksum, and remade when damaged.
    A file holds one tensor, and its name is a hash: no path and no patient is in it.
    """

    def _cachecheck(self, item_transformed: dict[str, Any]) -> Tensor:
        file = self.cache_dir / f"{self.hash_func(item_transformed).decode()}.safetensors"
        try:
            return read_state(file)[0]["slices"]
        except (FileNotFoundError, KeyError):
            pass
        except TornFile:
            log.warning("a damaged file of the cache is made again: %s", file)
        slices = self._pre_transform(dict(item_transformed))["image"]
        try:
            write_state(file, {"slices": slices}, durable=False)
        except OSError as error:
            raise UserError(f"{file}: the cache cannot be written: {error.strerror}") from None
        return slices


def load_scans(
    scans: Sequence[Scan],
    preprocessing: Preprocessing,
    cache: Path,
    fixed: bool = False,
    skip_broken: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Tensor | None]:
    """Reads scans, from the cache where they are in it.

    Args:
        scans: what to read.
        preprocessing: how.
        cache: folder for the slices; made if need be, for no other user to read. A file of it belongs to the scan's
            files (path, size, time of change) and the preprocessing: when they change, another one is made.
        fixed: give every scan exactly ``preprocessing.slices`` slices, by repeating the nearest.
        skip_broken: give None for a scan that cannot be decoded, and log it, instead of stopping.
        progress: called with the number of scans that are done and of all.

    Returns:
        For each scan (k, 1, size, size) float16 in [-1, 1], the most inferior slice first.

    Raises:
        UserError: a file is missing or cannot be decoded, by name, or the cache cannot be written.
    """
    private_folder(cache)
    settings = preprocessing.model_dump_json()
    items = [{"image": [str(f) for f in scan.files], "kind": scan.kind} for scan in scans]
    dataset = ScanCache(items, pipeline(preprocessing), cache, hash_func=lambda item: _key(item, settings))
    tensors: list[Tensor | None] = []
    for number, scan in enumerate(scans, start=1):
        try:
            slices = _read(dataset, number - 1)
        except UserError as error:
            if not skip_broken:
                raise
            log.warning("centre %s: left out: %s", scan.centre, error)
            slices = None
        if slices is not None and fixed:
            slices = slices[evenly(len(slices), preprocessing.slices)]
        tensors.append(slices)
        if progress:
            progress(number, len(scans))
    return tensors


def _read(dataset: ScanCache, index: int) -> Tensor:
    try:
        return dataset[index]
    except RuntimeError as error:
        # MONAI wraps what a transform raises, once for each Compose.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def _key(item: dict[str, Any], settings: str) -> bytes:
    try:
        states = [(path, (s := Path(path).stat()).st_size, s.st_mtime_ns) for path in item["image"]]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    text = json.dumps([_VERSION, torch.__version__, monai.__version__, item["kind"], settings, states])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest().encode()
