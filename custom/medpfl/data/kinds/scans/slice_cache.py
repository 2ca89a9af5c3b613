"""Volumes as slices, decoded once, with what was found in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from medpfl.core.errors import UserError, first_line
from medpfl.core.version import version
from medpfl.data.decoded_cache import Made, kept, key_of
from medpfl.data.kinds.scans.look import Look
from medpfl.data.kinds.scans.preprocessing import Preprocessing, pipeline
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.places import private_folder

_VERSION = 4
"""Part of every key; a change of the pipeline that changes its output changes this number."""
_LIBRARIES = ("pydicom", "nibabel", "monai", "torch")
"""Another version of one may give other values."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoded:
    """A scan's slices (k, 1, size, size), and what was found while they were made."""

    slices: Tensor
    look: Look


class ScanCache:
    """Decoded scans in a folder, each in a file that is whole or not there.

    MONAI's PersistentDataset moves its files across file systems, which leaves half a file when interrupted, and stops
    at most damaged files. These are written in place or not at all, with a checksum, and remade when damaged. A file
    holds one tensor, and its name is a hash: no path and no patient is in it.

    Args:
        preprocessing: how scans are read.
        folder: made if need be, for no other user to read.
    """

    def __init__(self, preprocessing: Preprocessing, folder: Path):
        self._how, self._folder = preprocessing, private_folder(folder)
        self._steps = pipeline(preprocessing).transforms

    def __call__(self, scan: Scan) -> Decoded:
        """A scan, from the cache if it is in it.

        Raises:
            UserError: a file is missing, cannot be decoded or has no HU, or the cache cannot be written.
        """
        found = self.look(scan)
        if problem := found.look.error():
            raise UserError(f"{scan.place}: {problem}")
        return found

    def look(self, scan: Scan) -> Decoded:
        """A scan whose values may be no HU; UserError for all else, see :meth:`__call__`."""

        def made() -> Made:
            decoded = self._decoded(scan)
            return {"slices": decoded.slices}, asdict(decoded.look)

        files = [file.resolve() for file in scan.files]  # a check and a run may be given another path to them
        key = key_of(files, _VERSION, *map(version, _LIBRARIES), scan.kind, self._how.model_dump_json())
        tensors, info = kept(self._folder, key, made)
        return Decoded(tensors["slices"], Look.read(info))

    def _decoded(self, scan: Scan) -> Decoded:
        load, *rest = self._steps
        item = load({"image": [str(file) for file in scan.files], "kind": scan.kind})
        look, lungs = Look.of_values(item["image"].numpy(), self._how.modality), None
        try:
            for step in rest:
                item = step(item)
                lungs = item.get("image_lungs", lungs)
        except UserError:
            raise
        except Exception as error:  # A volume may be of a shape that nobody thought of.
            raise UserError(f"{scan.place}: cannot be made slices of: {first_line(error)}") from error
        return Decoded(item["image"], look.with_lungs(lungs, self._how.lung_crop))


def load_scans(
    scans: Iterable[Scan],
    preprocessing: Preprocessing,
    cache: Path,
    skip_broken: bool = False,
) -> Iterator[Decoded | None]:
    """Reads scans one after another, from the cache where they are in it.

    Args:
        scans: what to read.
        preprocessing: how.
        cache: folder for the slices. A file of it belongs to the scan's files (path, size, time of change) and the
            preprocessing: when they change, another one is made.
        skip_broken: give None for a scan that cannot be used, and log it, instead of stopping.

    Yields:
        For each scan its slices, see :func:`~medpfl.data.kinds.scans.preprocessing.pipeline`, and what was found.

    Raises:
        UserError: a file is missing, cannot be decoded or has no HU, by name, or the cache cannot be written.
    """
    decoded = ScanCache(preprocessing, cache)
    for scan in scans:
        try:
            found = decoded(scan)
        except UserError as error:
            if not skip_broken:
                raise
            log.warning("centre %s: left out: %s", scan.centre, error)
            found = None
        yield found
