"""CT scans as the sites' data: every centre of a manifest is a site, its patients divided, its slices in memory."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import Tensor

from medpfl.algorithms.base import Value
from medpfl.data.catalog import cache_folder
from medpfl.data.ct.manifest import Manifest, find_manifest, named_classes, open_manifest
from medpfl.data.ct.patients import split_patients
from medpfl.data.ct.preprocessing import Preprocessing
from medpfl.data.ct.scan import Scan
from medpfl.data.ct.sharing import shared
from medpfl.data.split import PARTS, Part
from medpfl.data.start_images import start_images
from medpfl.errors import UserError
from medpfl.site.data import ImageTensors, SiteData

if TYPE_CHECKING:
    from medpfl.config import RunConfig


log = logging.getLogger(__name__)


@dataclass
class Scans:
    """The centres of a manifest. In a simulation the first is site-1 and so on; a hospital's own has one centre.

    ``data_args`` are :class:`~medpfl.data.ct.preprocessing.Preprocessing`, the same at all sites, and ``classes``, the
    class names, for whoever makes the job without having the data.
    """

    config: RunConfig

    @cached_property
    def manifest(self) -> Manifest:
        """What there is; UserError if its classes are not the job's."""
        manifest = open_manifest(find_manifest(self.config.data))
        if (asked := self._classes) and asked != manifest.classes:
            raise UserError(
                f"{manifest.root}: its classes are {', '.join(manifest.classes)}, the job's are {', '.join(asked)}"
            )
        return manifest

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How volumes become slices; UserError names a wrong ``--data-arg``."""
        try:
            return Preprocessing(**{k: v for k, v in self.config.data_args.items() if k != "classes"})
        except ValidationError as error:
            first = error.errors()[0]
            known = ", ".join([*Preprocessing.model_fields, "classes"])
            reason = first["msg"].removeprefix("Value error, ")
            raise UserError(f"--data-arg {first['loc'][0]}: {reason}; there are {known}") from None

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.sites.DataSource`."""
        classes = self._classes or self.manifest.classes
        return {"in_channels": 1, "num_classes": len(classes), "image_size": self.preprocessing.size}

    def prepare(self) -> None:
        """Reads and decodes every scan once, into the cache.

        Raises:
            UserError: a scan cannot be used, or is at two centres, or a patient is in different parts at two.
        """
        centres = [*self._sites.values(), *self._held_out]
        for finding in shared({centre: self._scans(centre) for centre in centres}):
            if finding.level == "error":
                raise UserError(f"{self.manifest.root}: {finding.message}")
            log.warning("%s", finding.message)
        for centre in centres:
            self._load([scan for part in self._parts(centre).values() for scan in part])

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.sites.DataSource`."""
        return self._tensors(self._parts(self._centre(name)), device)

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.sites.DataSource`."""
        raise UserError(
            "hospitals' scans are not pooled to pretrain f: give a checkpoint (--set pretrain=PATH) or use f-fedap"
        )

    def start_images(self, settings: Mapping[str, Value]) -> Tensor:
        """See :class:`medpfl.data.sites.DataSource`; no scan is set aside for it."""
        if settings["start"] == "holdout":
            raise UserError("start=holdout: no scans are set aside; use noise or the path of public images")
        return start_images(settings, self.model_arguments(), self.config.seed)

    def held_out(self, device: torch.device) -> dict[str, SiteData]:
        """See :class:`medpfl.data.sites.DataSource`."""
        return {
            centre: self._tensors({"train": [], "validation": [], "test": self._scans(centre)}, device)
            for centre in self._held_out
        }

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.sites.DataSource`. Parts and classes are counted in patients.

        Where the job names the classes and the centres are not all here, as on the server of real hospitals, no more
        than the job itself is known.
        """
        if self._classes and not self._all_here():
            return {
                "name": self.config.data,
                "source": None,
                "md5": None,
                "classes": list(self._classes),
                "partition": "natural",
                "sites": {},
                "held_out": {},
                "preprocessing": self.preprocessing.model_dump(mode="json"),
            }
        sites = {}
        for name, centre in self._sites.items():
            parts = self._parts(centre)
            labels = {scan.patient: scan.label for part in parts.values() for scan in part}
            counts = Counter(labels.values())
            sites[name] = {
                **{part: len({scan.patient for scan in scans}) for part, scans in parts.items()},
                "classes": {str(c): counts[c] for c in range(len(self.manifest.classes))},
                "centre": centre,
                "description": self.manifest.centre(centre).description,
                "scans": sum(map(len, parts.values())),
            }
        return {
            "name": self.manifest.name,
            "source": str(self.manifest.root),
            "md5": self._checksum(),
            "classes": list(self.manifest.classes),
            "partition": "natural",
            "sites": sites,
            "held_out": {centre: len({s.patient for s in self._scans(centre)}) for centre in self._held_out},
            "phantom": self.manifest.phantom,
            "preprocessing": self.preprocessing.model_dump(mode="json"),
        }

    def _all_here(self) -> bool:
        try:
            return bool(self._sites)
        except UserError:
            return False

    @property
    def _classes(self) -> tuple[str, ...]:
        return named_classes(self.config.data_args)

    @cached_property
    def _held_out(self) -> list[str]:
        return held_out_centres(self.manifest, self.config.held_out)

    @cached_property
    def _sites(self) -> dict[str, str]:
        """Site name to centre, in a simulation."""
        centres = [c.name for c in self.manifest.centres if c.name not in self._held_out]
        if len(centres) != self.config.sites:
            aside = f" and {len(self._held_out)} held out" if self._held_out else ""
            raise UserError(
                f"--sites {self.config.sites}: {self.manifest.root} has {len(centres)} centres to train at{aside}"
            )
        return dict(zip(self.config.site_names, centres, strict=True))

    def _centre(self, site: str) -> str:
        centres = [centre.name for centre in self.manifest.centres]
        if len(centres) == 1 and self.config.sites > 1:  # a hospital's own manifest
            return centres[0]
        if site not in self._sites:
            raise UserError(f"{self.manifest.root}: no centre for {site}: there are {', '.join(centres)}")
        return self._sites[site]

    def _scans(self, centre: str) -> list[Scan]:
        known = self.__dict__.setdefault("_known", {})
        if centre not in known:
            known[centre] = _read(self.manifest, centre, _stamp(self.manifest, centre))
        return list(known[centre])

    def _parts(self, centre: str) -> dict[Part, list[Scan]]:
        c = self.config
        return split_patients(self._scans(centre), c.fractions, c.train_fraction, c.seed, centre)

    def _load(self, scans: Sequence[Scan]) -> list[Tensor | None]:
        from medpfl.data.ct.cache import load_scans

        return load_scans(
            scans,
            self.preprocessing,
            cache_folder() / "ct",
            fixed=self.config.pooling == "attention",
            skip_broken=self.manifest.skip_broken,
        )

    def _tensors(self, parts: Mapping[Part, Sequence[Scan]], device: torch.device) -> ImageTensors:
        tensors = {part: self._part(parts[part]) for part in PARTS}
        return ImageTensors(*({part: t[i].to(device) for part, t in tensors.items()} for i in range(3)))

    def _part(self, scans: Sequence[Scan]) -> tuple[Tensor, Tensor, Tensor]:
        """Slices (or bags of slices) of a part, their labels, and which patient each is of."""
        loaded = [(scan, slices) for scan, slices in zip(scans, self._load(scans), strict=True) if slices is not None]
        size = self.preprocessing.size
        if not loaded:
            none = torch.empty(0, dtype=torch.long)
            return torch.empty(0, 1, size, size, dtype=torch.float16), none, none
        # A patient whose scans have different labels (a follow-up) is tested once for each label.
        bags = {key: i for i, key in enumerate(dict.fromkeys((s.patient, s.label) for s, _ in loaded))}
        attention = self.config.pooling == "attention"
        repeats = torch.tensor([1 if attention else len(slices) for _, slices in loaded])
        labels = torch.tensor([scan.label for scan, _ in loaded])
        patients = torch.tensor([bags[scan.patient, scan.label] for scan, _ in loaded])
        images = [slices for _, slices in loaded]
        return (
            torch.stack(images) if attention else torch.cat(images),
            labels.repeat_interleave(repeats),
            patients.repeat_interleave(repeats),
        )

    def _checksum(self) -> str:
        """Of which scan has which label at which centre."""
        lines = [
            f"{centre}\t{scan.id}\t{scan.label}"
            for centre in [*self._sites.values(), *self._held_out]
            for scan in sorted(self._scans(centre), key=lambda scan: scan.id)
        ]
        return hashlib.md5("\n".join(lines).encode(), usedforsecurity=False).hexdigest()


def held_out_centres(manifest: Manifest, asked: int | str) -> list[str]:
    """Names of the centres that ``--held-out`` keeps out of training; UserError unless one is left to train at."""
    names = [centre.name for centre in manifest.centres]
    if not asked:
        return []
    if isinstance(asked, int):
        chosen = names[-asked:]
    else:
        chosen = list(dict.fromkeys(name.strip() for name in asked.split(",")))
        if unknown := [name for name in chosen if name not in names]:
            raise UserError(f"--held-out {unknown[0]}: {manifest.root} has the centres {', '.join(names)}")
    if len(chosen) == len(names):
        raise UserError(
            f"--held-out {asked}: at least one centre must be left to train at, and {manifest.root} has {len(names)}: "
            + ", ".join(names)
        )
    return chosen


@lru_cache(maxsize=128)
def _read(manifest: Manifest, centre: str, stamp: str) -> tuple[Scan, ...]:
    """:func:`~medpfl.data.ct.cohort.read_centre`, once in a process while the files stay as they are.

    A header takes a millisecond, and a comparison of many runs would read those of every slice for each.
    """
    from medpfl.data.ct.cohort import read_centre

    return tuple(read_centre(manifest, centre))


def _stamp(manifest: Manifest, name: str) -> str:
    """Changes when a file in the centre's folder or beside its table, or the table, does."""
    from medpfl.data.ct.series import files_below

    centre = manifest.centre(name)
    table = manifest.root / (centre.labels or centre.datalist)
    stamp = hashlib.blake2b(digest_size=16)
    for folder in filter(Path.is_dir, dict.fromkeys((manifest.root / centre.folder, table.parent))):
        for path in files_below(folder):
            # A dangling link must not end it; reading the series says what is wrong.
            state = path.stat() if path.exists() else path.lstat()
            stamp.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    if table.is_file():
        stamp.update(table.read_bytes())
    return stamp.hexdigest()
