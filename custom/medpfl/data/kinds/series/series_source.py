"""Time series as the sites' data: every centre is a site, its windows divided by patient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.gathered import gathered
from medpfl.core.site_data import PARTS, ImageTensors, Part, SiteData
from medpfl.data.centres import Centres, SetsAside, as_sites, described_elsewhere, is_divided
from medpfl.data.finding import heed
from medpfl.data.inputs import Inputs
from medpfl.data.kinds.series.reading import SeriesReading, as_input
from medpfl.data.kinds.series.series_set import SeriesSet, Window
from medpfl.data.patients import person
from medpfl.data.people import people
from medpfl.data.split import rows_to_pretrain_on
from medpfl.data.uneven import JUDGED, judged_classes

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig


@dataclass
class TimeSeries(SetsAside[Window]):
    """The centres of time series. In a simulation the first is site-1 and so on; a hospital's own has one.

    With a partition all windows are taken together and divided over simulated sites, each patient's at one of them.

    Attributes:
        config: the run; ``data_args`` are ``reading`` and ``classes``, the same at all sites.
        reading: how windows become inputs.
        opened: reads the windows; None where they are not on this machine.
        counted: how many there are at most, of all sites that are here; no window is read.
    """

    config: RunConfig
    reading: SeriesReading
    opened: Callable[[], SeriesSet] | None
    counted: Callable[[], int]

    @cached_property
    def data(self) -> SeriesSet:
        """All windows, as the job describes them.

        Raises:
            UserError: they are not here, or not what the job says.
        """
        if self.opened is None:
            raise UserError(f"time series {self.config.data!r} are not on this machine")
        found = self.opened()
        self.require_fit(found)
        return found if self.config.partition == "natural" else found.together()

    def require_fit(self, found: SeriesSet) -> None:
        """Raises UserError, with the file's name, where windows are not what the job says."""
        _, channels, length = found.values.shape
        job = "the job has"
        for what, there, said in (
            ("channels", channels, self.reading.channels),
            ("samples a window", length, self.reading.length),
            ("channels", channels, len(self.reading.divide) or None),
        ):
            if said is not None and there != said:
                raise UserError(f"{found.source}: series of {there} {what}; {job} {said}")
        said = self._classes
        if said and found.named and said != found.classes:
            order = "; the order matters" if set(said) == set(found.classes) else ""
            raise UserError(
                f"{found.source}: its classes are {', '.join(found.classes)}, the job's are {', '.join(said)}{order}"
            )
        if said and (highest := int(found.labels.max())) >= len(said):
            raise UserError(f"{found.source}: has the label {highest}; {job} {len(said)} classes: {', '.join(said)}")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The job's, else the data's."""
        return self._classes or self.data.classes

    @cached_property
    def windows(self) -> Mapping[str, tuple[Window, ...]]:
        """By centre; with a partition by simulated site."""
        return as_sites(self.data.windows(), self.config)

    @cached_property
    def centres(self) -> Centres:
        """Which site is which centre."""
        return Centres(tuple(self.windows), self.data.source, self.config)

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`; ``image_size`` is (T,)."""
        channels, length = self._shape
        return {"in_channels": channels, "num_classes": len(self.classes), "image_size": (length,)}

    @property
    def _shape(self) -> tuple[int, int]:
        """Channels and samples of a window: the job's, else the data's."""
        channels, length = self.reading.channels, self.reading.length
        if channels is None or length is None:
            if self.opened is None:
                missing = "channels" if channels is None else "length"
                raise UserError(f"--data-arg {missing} is missing: {self.config.data} is not here; say how many")
            _, channels, length = self.data.values.shape
        return channels, length

    def prepare(self) -> None:
        """See :class:`medpfl.data.source.DataSource`.

        Raises:
            UserError: windows are not what the job says, or a patient is in different parts at two centres.
        """
        _ = self.centres.sites, self._inputs
        if not self._divided:  # patients of one centre, or by their sites' names, are drawn to one site each
            whose = self.data.by_hospital()
            heed(people({centre: whose[centre] for centre in self.centres.used if whose}), f"{self.data.source}: ")

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        centre = self.centres.of(name)
        parts = self._parts(centre)
        if not parts["train"]:
            raise UserError(f"{self.data.source}: {centre}: no window is left to train on; raise the share of training")
        return self._tensors(parts, device)

    def values(self, name: str) -> int:
        """See :func:`medpfl.data.source.number_of_values`: of the whole file or folder, which is read together."""
        return self.counted() * prod(self._shape)

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        if self.opened is None or not self._all_here():
            raise NotInOnePlace("hospitals' series are not pooled")
        every = [window for centre in self.centres.sites.values() for window in self._parts(centre)["train"]]
        chosen = [every[row] for row in rows_to_pretrain_on(len(every), share, self.config.seed).tolist()]
        return self._tensors({"train": chosen, "validation": [], "test": []}, device)

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`."""
        if self.opened is None:
            return {}
        return {centre: self._tensors(parts, device) for centre, parts in self._held_out(divided).items()}

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`: the windows that every site sets aside, (k, C, T)."""
        if self.opened is None or not self._all_here():
            raise UserError("hospitals' series do not leave them")
        pool = [window.row for centre in self.centres.sites.values() for window in self._aside(centre)]
        if not pool:
            raise UserError(f"--holdout {self.config.holdout}: too small a share, no site has a window to set aside")
        chosen = np.sort(rng.permutation(len(pool))[:count])
        rows = np.asarray(pool)[chosen]
        return gathered(len(rows), tuple(self._inputs.shape[1:]), lambda some: self._inputs[rows[some]])

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`."""
        _ = self.data  # refused where it does not fit
        return self.classes

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        classes = ", ".join(f"{label} {name}" for label, name in enumerate(self.classes))
        return f"each site's own time series {self.config.data!r}, classes {classes}"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`.

        Where the centres are not all here, as on the server of real hospitals, no more than the job itself is known.
        """
        reading = {"reading": self.reading.model_dump(mode="json")}
        if self.opened is None or not self._all_here():
            return described_elsewhere(self.config.data, self.classes) | reading
        sites = {}
        for name, centre in self.centres.sites.items():
            parts = self._parts(centre)
            labels = {part: [window.label for window in parts[part]] for part in PARTS}
            counts = np.bincount(np.concatenate([np.array(labels[p], dtype=int) for p in PARTS]), minlength=1)
            sites[name] = {
                **{part: len(parts[part]) for part in PARTS},
                "classes": {str(c): int(counts[c]) if c < len(counts) else 0 for c in range(len(self.classes))},
                "judged_classes": judged_classes({part: labels[part] for part in JUDGED}, len(self.classes)),
                "centre": centre,
                **self._in_patients(parts),
            }
        return self._described_here(self.data.name, self.data.md5, self.classes, sites) | reading

    def checksum(self) -> str | None:
        """Of the file or the files; None where they are not here."""
        return self.data.md5 if self.opened else None

    def inputs(self) -> Inputs:
        """See :class:`medpfl.data.source.DataSource`: an ``.npy`` file of one window, (C, T), in the data's units."""
        shape = self.model_arguments()
        settings = {
            "channels": shape["in_channels"],
            "length": shape["image_size"][0],
            "normalise": self.reading.normalise,
            "divide": list(self.reading.divide),
        }
        load = {"_target_": "medpfl.bundle.series.LoadSeriesd", "keys": "image", **settings}
        named = bool(self._classes) or self.data.named
        # What an npz file only numbers has no names, as in files of images.
        return Inputs(
            "series", self.classes, settings["channels"], shape["image_size"], None, [load], settings, not named
        )

    @cached_property
    def _inputs(self) -> Tensor:
        """All windows as networks see them, (n, C, T) float32."""
        return as_input(torch.from_numpy(self.data.values), self.reading.normalise, self.reading.divide)

    def _people(self, samples: Sequence[Window]) -> int:
        """Windows stay together by recording; whose these are, the data may say."""
        if self._persons is None:
            return super()._people(samples)
        return len(self._persons[[window.row for window in samples]].unique())

    @cached_property
    def _persons(self) -> Tensor | None:
        """(n,) int64, whose the windows are; None where that is not known."""
        if self.data.persons is None:
            return None
        return torch.from_numpy(np.unique([person(name) for name in self.data.persons], return_inverse=True)[1]).long()

    @property
    def _divided(self) -> bool:
        return is_divided(tuple(self.data.windows()), self.config)

    def _samples(self, centre: str) -> tuple[Window, ...]:
        return self.windows[centre]

    def _tensors(self, parts: Mapping[Part, Sequence[Window]], device: torch.device) -> ImageTensors:
        rows = {part: torch.tensor([window.row for window in parts[part]], dtype=torch.long) for part in PARTS}
        labels = torch.from_numpy(self.data.labels)
        whose = self._persons
        return ImageTensors(
            images={part: self._inputs[chosen].to(device) for part, chosen in rows.items()},
            labels={part: labels[chosen].to(device) for part, chosen in rows.items()},
            persons={} if whose is None else {part: whose[chosen].to(device) for part, chosen in rows.items()},
        )
