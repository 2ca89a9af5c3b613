"""CT or MR scans as the sites' data: a centre of a manifest is a site, its patients divided, its slices in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.site_data import PARTS, ImageTensors, Part, SiteData
from medpfl.data.arguments import read_arguments
from medpfl.data.centres import Centres, OfCentres, described_elsewhere, is_divided
from medpfl.data.finding import heed
from medpfl.data.inputs import Inputs
from medpfl.data.kinds.scans.label_columns import several_labels
from medpfl.data.kinds.scans.look import Look, crop_in_words
from medpfl.data.kinds.scans.manifest import Manifest, find_manifest, open_manifest, require_classes
from medpfl.data.kinds.scans.preprocessing import Preprocessing, steps
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.kinds.scans.sharing import copies, shared
from medpfl.data.labels import counts, require_fit
from medpfl.data.partition.by_patient import divide_patients
from medpfl.data.places import cache_folder
from medpfl.data.uneven import JUDGED, judged_classes

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.data.kinds.scans.slice_cache import Decoded


log = logging.getLogger(__name__)

_MOST = 5
"""Odd scans of a centre that a run names; the rest is counted."""


@dataclass
class Scans(OfCentres[Scan]):
    """The centres of a manifest. In a simulation the first is site-1 and so on; a hospital's own has one centre.

    ``data_args`` are :class:`~medpfl.data.kinds.scans.preprocessing.Preprocessing`, the same at all sites, and
    ``classes``, the class names, for whoever makes the job without having the data.
    """

    config: RunConfig
    _known: dict[str, tuple[Scan, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _seen: dict[str, list[tuple[Scan, Look]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _told: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _there: dict[Scan, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def manifest(self) -> Manifest:
        """What there is; UserError if its classes are not the job's, or its labels not the task's."""
        manifest = open_manifest(find_manifest(self.config.data), self._classes)
        require_classes(manifest, self._classes)
        require_fit(self.config, several_labels(manifest.tables), manifest.root, "scan")
        return manifest

    @cached_property
    def centres(self) -> Centres:
        """Which site is which centre; with a partition, the simulated sites that one centre is divided over."""
        names = tuple(centre.name for centre in self.manifest.centres)
        if self._divided:
            names = tuple(self.config.site_names)
        return Centres(names, self.manifest.root, self.config)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """What volumes become; UserError names a wrong ``--data-arg``."""
        found = read_arguments(Preprocessing, self.config.data_args)
        if found.depth and self.config.pooling == "attention":
            raise UserError(
                "--pooling attention is over a scan's slices, and with --data-arg depth a scan is one volume: leave "
                "one of them out"
            )
        return found

    @property
    def images_per_sample(self) -> int:
        """See :func:`medpfl.data.source.images_per_sample`."""
        return self.preprocessing.slices if self.config.pooling == "attention" else 1

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`."""
        classes = self._classes or self.manifest.classes
        return {"in_channels": 1, "num_classes": len(classes), "image_size": self.preprocessing.shape}

    def prepare(self) -> None:
        """Reads and decodes every scan once, into the cache.

        Raises:
            UserError: a scan cannot be used, is at two centres, or is there twice with different labels; or a patient
                is in different parts at two.
        """
        centres = self.centres.used
        heed(shared({centre: self._samples(centre) for centre in centres}), f"{self.manifest.root}: ")
        for centre in centres:
            self._tell(centre)
        marked = [(scan, look.content) for centre in centres for scan, look in self._looks(centre)]
        heed(copies(marked, self.manifest.classes))

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        centre = self.centres.of(name)
        self._tell(centre)
        return self._tensors(self._parts(centre), device)

    def values(self, name: str) -> int:
        """See :func:`medpfl.data.source.number_of_values`: as if each scan had all the slices that are asked for."""
        how = self.preprocessing
        scans = sum(map(len, self._parts(self.centres.of(name)).values()))
        return scans * (how.depth or how.slices) * how.size**2

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        raise NotInOnePlace("hospitals' scans are not pooled")

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`; there are none."""
        raise UserError("no scans are set aside")

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`."""
        return {centre: self._tensors(parts, device) for centre, parts in self._held_out(divided).items()}

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`."""
        return self.manifest.classes

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        classes = ", ".join(f"{label} {name}" for label, name in enumerate(self.inputs().classes))
        return f"each site's own {self.preprocessing.modality} scans {self.config.data!r}, classes {classes}"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`. Parts and classes are counted in patients.

        Where the job names the classes and the centres are not all here, as on the server of real hospitals, no more
        than the job itself is known.
        """
        preprocessing = {"preprocessing": self.preprocessing.model_dump(mode="json")}
        if self._classes and not self._all_here():
            return described_elsewhere(self.config.data, self._classes) | preprocessing
        sites = {}
        for name, centre in self.centres.sites.items():
            parts = {part: self._decoded_of(scans) for part, scans in self._parts(centre).items()}
            # A patient with scans of two classes is a case of each.
            targets = [target for _, target in {(s.patient, s.target) for part in parts.values() for s in part}]
            sites[name] = {
                **{part: self._number(scans) for part, scans in parts.items()},
                "classes": {str(c): n for c, n in enumerate(counts(targets, len(self.manifest.classes)))},
                **self._judged(parts),
                "centre": centre,
                "description": next((c.description for c in self.manifest.centres if c.name == centre), ""),
                "scans": sum(map(len, parts.values())),
                **self._cropped(centre),
            }
        described = self._described_here(self.manifest.name, self.checksum(), self.manifest.classes, sites)
        held_out = {c: self._number(self._decoded_of(self._samples(c))) for c in self.centres.held_out}
        described["held_out"] = held_out
        return described | {"phantom": self.manifest.phantom} | preprocessing

    def checksum(self) -> str:
        """Of which scan has which size and labels at which centre."""

        def line(scan: Scan) -> str:
            return f"{scan.id}\t{scan.target}\t{sum(file.stat().st_size for file in scan.files)}"

        return self._md5(line, key=lambda scan: scan.id)

    def _undivided(self) -> Mapping[str, Sequence[Scan]]:
        if not self._divided:
            return super()._undivided()
        (only,) = self.manifest.centres
        return {only.name: self._read(only.name)}

    def _number(self, samples: Sequence[Scan]) -> int:
        return self._people(samples)

    def _judged(self, parts: Mapping[Part, Sequence[Scan]]) -> dict[str, Any]:
        if self._several:
            return {}
        labels = {part: [label for _, label in {(s.patient, s.label) for s in parts[part]}] for part in JUDGED}
        return {"judged_classes": judged_classes(labels, len(self.manifest.classes))}

    def inputs(self) -> Inputs:
        """See :class:`medpfl.data.source.DataSource`."""
        how, bags = self.preprocessing, self.config.pooling == "attention"
        made = steps(how)
        plausible = "medpfl.data.kinds.scans.transforms.PlausibleValuesd"
        made.insert(1, {"_target_": plausible, "keys": "image", "modality": how.modality})
        if bags:
            made.append(
                {"_target_": "medpfl.data.kinds.scans.transforms.FixedSlicesd", "keys": "image", "count": how.slices}
            )
        if how.depth:
            made.append({"_target_": "medpfl.data.kinds.scans.transforms.StackedSlicesd", "keys": "image"})
        made.append({"_target_": "monai.transforms.EnsureTyped", "keys": "image", "dtype": "$torch.float32"})
        classes = self._classes or self.manifest.classes
        settings = how.model_dump(mode="json")
        return Inputs("scan", tuple(classes), 1, how.shape, how.slices if bags else None, made, settings)

    @property
    def _several(self) -> bool:
        """Whether a scan has several labels."""
        return self.config.learned.labels == "labels"

    @property
    def _divided(self) -> bool:
        return is_divided([centre.name for centre in self.manifest.centres], self.config)

    def _samples(self, centre: str) -> list[Scan]:
        if centre not in self._known and self._divided:
            c, (only,) = self.config, self.manifest.centres
            self._known |= divide_patients(self._read(only.name), c.partition, c.site_names, c.seed)
        elif centre not in self._known:
            self._known[centre] = self._read(centre)
        return list(self._known[centre])

    def _read(self, centre: str) -> tuple[Scan, ...]:
        from medpfl.data.kinds.scans.centre_scans import read_unless_known

        return read_unless_known(self.manifest, centre, self.preprocessing.modality)

    def _looks(self, centre: str) -> list[tuple[Scan, Look]]:
        """What was found in the scans that a run uses of a centre; each is read once for it, one at a time."""
        if centre not in self._seen:
            scans = [scan for part in self._parts(centre).values() for scan in part]
            decoded = zip(scans, self._load(scans), strict=True)
            looks = {scan: None if found is None else found.look for scan, found in decoded}
            self._there |= {scan: look is not None for scan, look in looks.items()}
            self._seen[centre] = [(scan, look) for scan, look in looks.items() if look]
        return self._seen[centre]

    def _tell(self, centre: str) -> None:
        """Logs what is odd about a centre's scans as they are decoded, once."""
        if centre in self._told:
            return
        self._told.add(centre)
        looks = self._looks(centre)
        odd = [finding.message for scan, look in looks for finding in look.findings(str(scan.place))]
        for message in odd[:_MOST]:
            log.warning("%s: %s", centre, message)
        if len(odd) > _MOST:
            log.warning("%s: and %d more like these: `medpfl data check --deep` lists them", centre, len(odd) - _MOST)
        if words := crop_in_words([look for _, look in looks]):
            log.log(logging.WARNING if odd else logging.INFO, "%s: %s", centre, words)

    def _cropped(self, centre: str) -> dict[str, Any]:
        """To how many of the scans the lung crop was applied."""
        if not self.preprocessing.lung_crop:
            return {}
        return {"lung_crop": sum(look.lungs for _, look in self._looks(centre))}

    def _decoded_of(self, scans: Sequence[Scan]) -> Sequence[Scan]:
        """Those that a run has: all, unless the manifest lets it leave out what cannot be decoded."""
        if not self.manifest.skip_broken:
            return scans
        new = [scan for scan in scans if scan not in self._there]
        self._there |= {scan: found is not None for scan, found in zip(new, self._load(new), strict=True)}
        return [scan for scan in scans if self._there[scan]]

    def _load(self, scans: Sequence[Scan]) -> Iterator[Decoded | None]:
        from medpfl.data.kinds.scans.slice_cache import load_scans

        return load_scans(scans, self.preprocessing, cache_folder() / "ct", self.manifest.skip_broken)

    def _tensors(self, parts: Mapping[Part, Sequence[Scan]], device: torch.device) -> ImageTensors:
        tensors = {part: self._part(parts[part]) for part in PARTS}
        return ImageTensors(*({part: t[i].to(device) for part, t in tensors.items()} for i in range(4)))

    def _part(self, scans: Sequence[Scan]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Slices (bags of slices, volumes) of a part, their labels, which patient is tested by them, whose they are."""
        from medpfl.data.kinds.scans.transforms import evenly

        loaded = [(scan, found.slices) for scan, found in zip(scans, self._load(scans), strict=True) if found]
        if not loaded:
            none = torch.empty(0, dtype=torch.long)
            labels = torch.empty(0, len(self.manifest.classes), dtype=torch.long) if self._several else none
            sides = self.preprocessing.shape
            empty = torch.empty(0, 1, *([sides] * 2 if isinstance(sides, int) else sides), dtype=torch.float16)
            return empty, labels, none, none
        # A patient whose scans have different labels (a follow-up) is tested once for each label.
        bags = {key: i for i, key in enumerate(dict.fromkeys((s.patient, s.target) for s, _ in loaded))}
        attention, whole = self.config.pooling == "attention", bool(self.preprocessing.depth)
        repeats = torch.tensor([1 if attention or whole else len(slices) for _, slices in loaded])
        labels = torch.tensor([scan.target for scan, _ in loaded])
        patients = torch.tensor([bags[scan.patient, scan.target] for scan, _ in loaded])
        numbers = {name: i for i, name in enumerate(dict.fromkeys(scan.patient for scan, _ in loaded))}
        persons = torch.tensor([numbers[scan.patient] for scan, _ in loaded])
        count = self.preprocessing.slices
        images = [slices[evenly(len(slices), count)] if attention else slices for _, slices in loaded]
        if whole:
            images = [slices.transpose(0, 1) for slices in images]
        return (
            torch.stack(images) if attention or whole else torch.cat(images),
            labels.repeat_interleave(repeats, dim=0),
            patients.repeat_interleave(repeats),
            persons.repeat_interleave(repeats),
        )
