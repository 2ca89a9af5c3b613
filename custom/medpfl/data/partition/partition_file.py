"""A partition as a file: one JSON, written by :meth:`Partition.save` or by hand.

By hand, ``{"site-1": {"train": [0, 5], "validation": [], "test": [7]}, ...}`` is enough; indices count the data set's
images, official training part first, then validation, then test.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.core.whole_file import write_bytes
from medpfl.data.dataset import ImageDataset
from medpfl.data.split import SiteIndices

_SCHEMA = 1


@dataclass(frozen=True, eq=False)
class Partition:
    """Which site has which images.

    Attributes:
        spec: how it was drawn, e.g. ``equal-dirichlet:0.1``.
        seed: the run's seed it was drawn with.
        sites: the sites, in order.
        dataset: name of the data set.
        md5: checksum of the data set's file; empty if a file written by hand gives none.
        holdout: images that no site has, set aside as public, e.g. to start image synthesis from.
    """

    spec: str
    seed: int
    sites: list[SiteIndices]
    dataset: str
    md5: str
    holdout: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def save(self, path: str | Path) -> None:
        """Writes the partition as JSON, atomically.

        Raises:
            UserError: the file cannot be written.
        """
        content = {
            "schema": _SCHEMA,
            "spec": self.spec,
            "seed": self.seed,
            "dataset": {"name": self.dataset, "md5": self.md5},
            "sites": {site.name: {part: getattr(site, part).tolist() for part in PARTS} for site in self.sites},
            "holdout": self.holdout.tolist(),
        }
        try:
            write_bytes(Path(path), json.dumps(content, separators=(",", ":")).encode())
        except OSError as error:
            raise UserError(f"{path}: the partition cannot be written: {error}") from None

    @classmethod
    def load(cls, path: str | Path, dataset: ImageDataset) -> Partition:
        """Reads a partition and checks that it fits the data set.

        Raises:
            UserError: the file is missing or not a partition, belongs to another data set, has an index that the data
                set has not or that occurs twice, or has a site without training images.
        """
        path = Path(path)
        content = _read_json(path)
        by_hand = "schema" not in content
        if not by_hand and content["schema"] != _SCHEMA:
            raise UserError(f"{path}: has schema {content['schema']!r}; this version reads {_SCHEMA}")
        about = {} if by_hand else _mapping(path, content, "dataset")
        if (md5 := about.get("md5", "")) and md5 != dataset.md5:
            raise UserError(
                f"{path}: belongs to {about.get('name')} with MD5 {md5}; {dataset.source} has {dataset.md5}"
            )
        seed = content.get("seed", 0)
        if not isinstance(seed, int):
            raise UserError(f"{path}: seed is {seed!r}; an integer is needed")
        sites = content if by_hand else _mapping(path, content, "sites")
        partition = cls(
            spec=f"file:{path}" if by_hand else str(content.get("spec", f"file:{path}")),
            seed=0 if by_hand else seed,
            sites=[_site(path, name, _mapping(path, sites, name)) for name in sites],
            dataset=dataset.name,
            md5=md5,
            holdout=_indices(path, "holdout", [] if by_hand else content.get("holdout", [])),
        )
        _validate(path, partition, len(dataset))
        return partition


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _unique(path, pairs))
    except OSError as error:
        raise UserError(f"{path}: the partition cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a partition; right is {{'site-1': {{'train': [...], 'test': [...]}}, ...}}")
    return content


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(twice := {key for key in keys if keys.count(key) > 1}):
        raise UserError(f"{path}: {min(twice)} occurs twice")
    return dict(pairs)


def _mapping(path: Path, content: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(content.get(key), dict):
        raise UserError(f"{path}: {key} is missing or not an object")
    return content[key]


def _site(path: Path, name: str, parts: dict[str, Any]) -> SiteIndices:
    # The name becomes a file's name, among others.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"{path}: site name {name!r}: use letters, digits, '.', '_' and '-'")
    if unknown := set(parts) - set(PARTS):
        raise UserError(f"{path}: {name} has {min(unknown)!r}; right are train, validation and test")
    return SiteIndices(name, *(_indices(path, f"{name} {part}", parts.get(part, [])) for part in PARTS))


def _indices(path: Path, where: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0, dtype=object)
    if not isinstance(values, list) or (values and (array.dtype.kind != "i" or array.ndim != 1)):
        raise UserError(f"{path}: {where} must be a list of image numbers, 0, 1, 2, ...")
    return array.astype(np.int64)


def _validate(path: Path, partition: Partition, images: int) -> None:
    if not partition.sites:
        raise UserError(f"{path}: has no site")
    places = [(f"{site.name} {part}", getattr(site, part)) for site in partition.sites for part in PARTS]
    places.append(("holdout", partition.holdout))
    for where, indices in places:
        outside = indices[(indices < 0) | (indices >= images)]
        if len(outside):
            raise UserError(f"{path}: {where} has image {outside[0]}; the data set has 0 to {images - 1}")
    everything = np.concatenate([indices for _, indices in places])
    if len(twice := np.flatnonzero(np.bincount(everything, minlength=images) > 1)):
        holders = [where for where, indices in places for _ in range(int((indices == twice[0]).sum()))]
        raise UserError(f"{path}: image {twice[0]} is in {' and in '.join(holders[:2])}; an image may be used once")
    if empty := [site.name for site in partition.sites if not len(site.train)]:
        raise UserError(f"{path}: {empty[0]} has no training image")
