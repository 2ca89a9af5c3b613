"""Images with masks as the sites' data: every centre is a site, its patients divided."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.site_data import PARTS, Part, SiteData
from medpfl.data.centres import Centres, OfCentres, as_sites, described_elsewhere, is_divided
from medpfl.data.finding import heed
from medpfl.data.inputs import Inputs, stored_images, to_unit_range
from medpfl.data.kinds.masks.cache import Decoded, load_pairs, rows_of
from medpfl.data.kinds.masks.layout import find_masked, open_layout
from medpfl.data.kinds.masks.masked_npz import Arrays, image_shape, read_arrays
from medpfl.data.kinds.masks.pair import Layout, Pair, with_patients
from medpfl.data.kinds.masks.picture_pair import picture_reading
from medpfl.data.kinds.masks.reading import (
    STRUCTURE,
    Form,
    Reading,
    class_names,
    read_reading,
    require_background_first,
    require_taken,
    settings_of,
)
from medpfl.data.kinds.masks.tensors import require_alike, slices, volumes
from medpfl.data.kinds.masks.volume_steps import steps
from medpfl.data.kinds.npz.npz_file import file_md5
from medpfl.data.people import people
from medpfl.data.places import cache_folder
from medpfl.data.split import rows_to_pretrain_on

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

log = logging.getLogger(__name__)

_JUDGED = 5
"""Numbers that judging a case holds at a time, for each of its pixels and classes (tasks/segmentation/judging.py)."""


@dataclass
class Masked(OfCentres[Pair]):
    """The centres of images with masks. In a simulation the first is site-1 and so on; a hospital's own has one.

    ``data_args`` are :class:`~medpfl.data.kinds.masks.reading.Reading`, the same at all sites, and ``classes``, the
    classes' names, the background first.
    """

    config: RunConfig

    @cached_property
    def layout(self) -> Layout:
        """What there is; with a partition, one centre's images as those of simulated sites."""
        return replace(self._whole, centres=as_sites(self._whole.centres, self.config))

    @property
    def _divided(self) -> bool:
        return is_divided(tuple(self._whole.centres), self.config)

    @cached_property
    def _whole(self) -> Layout:
        layout = open_layout(self.config.data, read_reading(self.config.data_args), self.config.official)
        if self.config.official and layout.form != "arrays":
            raise UserError(f"--official: {self.config.data} has no parts that could be left out or kept; leave it out")
        return layout

    @cached_property
    def here(self) -> bool:
        """Whether the data are on this machine."""
        return find_masked(self.config.data) is not None

    @cached_property
    def centres(self) -> Centres:
        """Which site is which centre."""
        return Centres(tuple(self.layout.centres), self.layout.root, self.config)

    @cached_property
    def form(self) -> Form:
        """Of what files; as the job says it where there are none."""
        dims = read_reading(self.config.data_args).dims
        if not self.here:
            if dims is None:
                raise UserError(f"--data-arg dims is missing: {self.config.data} is not here; say dims=2 or dims=3")
            return "volumes" if dims == 3 else "pictures"
        form = self.layout.form
        if form != "volumes" and dims == 3:
            raise UserError(f"--data-arg dims=3: {self.layout.root} has pictures; volumes are NIfTI files")
        return "slices" if form == "volumes" and dims == 2 else form

    @cached_property
    def reading(self) -> Reading:
        """How images are read; UserError names a wrong ``--data-arg``."""
        form = self.form
        if self.here:
            require_taken(form, self.config.data_args)
        found = read_reading(self.config.data_args).model_copy(update={"dims": 3 if form == "volumes" else 2})
        if form == "pictures":
            picture_reading(found)  # names channels that pictures do not have
        return found

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes, the background first: the job's, else the data's, else one structure."""
        said = class_names(self.config.data_args)
        own = self.layout.classes if self.here else ()
        require_background_first(own, self.layout.root if own else "")
        if said and own and said != own:
            raise UserError(
                f"{self.layout.root}: its classes are {', '.join(own)}, the job's are {', '.join(said)}"
                + ("; the order matters" if set(said) == set(own) else "")
            )
        return said or own or STRUCTURE

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`; ``image_size`` is (H, W) or (D, H, W)."""
        channels, size = self._shape()
        return {"in_channels": channels, "num_classes": len(self.classes), "image_size": size}

    def prepare(self) -> None:
        """Reads every image and mask once, into the cache.

        Raises:
            UserError: one cannot be used, or a patient is in different parts at two sites.
        """
        centres = self.centres.used
        heed(people({centre: with_patients(self._samples(centre)) for centre in centres}), f"{self.layout.root}: ")
        if self.layout.unread:
            log.warning("%s", self.layout.unread)
        arrays = self._file()
        for centre in centres:
            self._decoded(centre, arrays)

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        centre = self.centres.of(name)
        parts = self._parts(centre)
        if not parts["train"]:
            raise UserError(f"{self.layout.root}: {centre}: no image is left to train on; raise the share of training")
        return self._made(parts, self._decoded(centre, self._file()), device)

    def values(self, name: str) -> int:
        """See :func:`medpfl.data.source.number_of_values`, and what judging the largest case takes.

        Of volumes by their headers, whole, not in patches; of an npz file, and of pictures that are divided, all.
        """
        centre, (channels, size) = self.centres.of(name), self._shape()
        together = self.form == "arrays" or (self._divided and self.form == "pictures")
        pairs = [*chain(*self._whole.centres.values())] if together else self._samples(centre)
        pixels = [prod(size)] * len(pairs)
        if self.form in ("volumes", "slices"):
            from medpfl.data.kinds.masks.volume_pair import read_head

            shapes = [read_head(pair).resampled(self.reading.spacing) for pair in pairs]
            pixels = [prod(shape) if self.form == "volumes" else prod(size) * shape[0] for shape in shapes]
        cases: Counter[tuple[str, str, str]] = Counter()
        for pair, of_pair in zip(pairs, pixels, strict=True):
            cases[pair.centre, pair.patient, pair.case] += of_pair
        return channels * sum(pixels) + _JUDGED * len(self.classes) * max(cases.values(), default=0)

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        if not self._all_here():
            raise NotInOnePlace("hospitals' images are not pooled")
        every = [pair for centre in self.centres.sites.values() for pair in self._parts(centre)["train"]]
        chosen = {every[row] for row in rows_to_pretrain_on(len(every), share, self.config.seed).tolist()}
        decoded: dict[Pair, Decoded] = {}
        arrays = self._file()
        for centre in self.centres.sites.values():
            decoded |= self._decoded(centre, arrays)
        return self._made(
            {"train": [pair for pair in every if pair in chosen], "validation": [], "test": []}, decoded, device
        )

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`."""
        held_out = self._held_out(divided)
        arrays = self._file() if held_out else None
        return {centre: self._made(parts, self._decoded(centre, arrays), device) for centre, parts in held_out.items()}

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`; there are none."""
        raise UserError("no images with masks are set aside")

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`."""
        _ = self.layout, self.reading, self._shape()  # refused where they do not fit
        return self.classes

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        classes = ", ".join(f"{label} {name}" for label, name in enumerate(self.classes))
        what = "volumes" if self.reading.dims == 3 else "pictures or slices"
        return f"each site's own {what} with masks {self.config.data!r}, classes {classes}"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`. ``classes`` counts the images in which one occurs.

        Where the centres are not all here, as on the server of real hospitals, no more than the job itself is known.
        """
        return self._described

    @cached_property
    def _described(self) -> dict[str, Any]:
        reading = {"reading": settings_of(self.form, self.reading)}
        if not self.here or not self._all_here():
            return described_elsewhere(self.config.data, self.classes) | reading
        sites, arrays = {}, self._file()
        for name, centre in self.centres.sites.items():
            parts = self._parts(centre)
            chosen = [pair for part in PARTS for pair in parts[part]]
            decoded = self._decoded(centre, arrays)
            occurs = torch.zeros(len(self.classes), dtype=torch.int64)
            for pair in chosen:
                occurs += torch.bincount(decoded[pair].mask.flatten(), minlength=len(occurs)) > 0
            sites[name] = {
                **{part: len(parts[part]) for part in PARTS},
                "classes": {str(label): number for label, number in enumerate(occurs.tolist())},
                "centre": centre,
                **self._in_patients(parts),
                "cases": len({(pair.patient, pair.case) for pair in chosen}),
            }
        return self._described_here(self.layout.name, self.checksum(), self.classes, sites) | reading

    def inputs(self) -> Inputs | None:
        """See :class:`medpfl.data.source.DataSource`; None of an npz file whose images are not square."""
        channels, size = self._shape()
        if self.form == "arrays":
            edge = size[0]
            stored = stored_images(self.classes, channels, edge, edge)
            return replace(stored, kind="masked picture") if size == (edge, edge) else None
        if self.form == "pictures":
            how = picture_reading(self.reading).model_dump(mode="json", exclude={"patient"})
            read = {"_target_": "medpfl.bundle.pictures.ReadPictured", "keys": "image", **how}
            made = [read, to_unit_range()]
            return Inputs("masked picture", self.classes, channels, size[0], None, made, how)
        made = [
            *steps(self.reading, masked=False),
            {"_target_": "monai.transforms.EnsureTyped", "keys": "image", "dtype": "$torch.float32"},
        ]
        return Inputs("masked volume", self.classes, channels, size, None, made, settings_of(self.form, self.reading))

    def _shape(self) -> tuple[int, tuple[int, ...]]:
        """Channels and size of what the network takes; UserError where an npz file's are not the job's."""
        reading, form = self.reading, self.form
        if form == "volumes":
            return reading.number_of_channels(form), reading.patch
        asked = (reading.size, reading.size)
        if form != "arrays":
            return reading.number_of_channels(form), asked
        channels, *size = image_shape(self.layout.root)
        if "size" in self.config.data_args and tuple(size) != asked:
            raise UserError(f"{self.layout.root}: images of {size[1]}×{size[0]} pixels; the job has {asked[0]}")
        if reading.channels is not None and reading.number_of_channels(form) != channels:
            wanted = reading.number_of_channels(form)
            raise UserError(f"{self.layout.root}: images of {channels} channels; the job has {wanted}")
        return channels, tuple(size)

    def _undivided(self) -> Mapping[str, Sequence[Pair]]:
        return self._whole.centres if self._divided else super()._undivided()

    def _samples(self, centre: str) -> tuple[Pair, ...]:
        return self.layout.centres[centre]

    def _decoded(self, centre: str, arrays: Arrays | None) -> dict[Pair, Decoded]:
        """All of a centre's images and masks; ``arrays`` are :meth:`_file`'s."""
        pairs = self._samples(centre)
        if arrays is not None:
            found = rows_of(arrays, pairs, self.reading, len(self.classes))
        elif self._divided and self.form == "pictures":
            found = [self._divided_pictures[pair.id] for pair in pairs]
        else:  # a volume is a file of the cache by itself, and a site keeps its own alone
            found = self._loaded(pairs)
        decoded = dict(zip(pairs, found, strict=True))
        require_alike(decoded, len(self.classes), self.reading)
        return decoded

    def _loaded(self, pairs: Sequence[Pair]) -> list[Decoded]:
        return load_pairs(pairs, self.form, self.reading, len(self.classes), cache_folder() / "masks")

    @cached_property
    def _divided_pictures(self) -> dict[str, Decoded]:
        """By id those of the one centre that is divided: one file of the cache, whatever the partition; read once."""
        (pairs,) = self._whole.centres.values()
        return {pair.id: one for pair, one in zip(pairs, self._loaded(pairs), strict=True)}

    def _file(self) -> Arrays | None:
        """What an npz file holds; None of other forms.

        It is kept where one centre is divided. Where a site is one centre of many, that would be the others' too.
        """
        if self.form != "arrays":
            return None
        return self._divided_arrays if self._divided else read_arrays(self.layout.root)

    @cached_property
    def _divided_arrays(self) -> Arrays:
        return read_arrays(self.layout.root)

    def _made(
        self, parts: Mapping[Part, Sequence[Pair]], decoded: Mapping[Pair, Decoded], device: torch.device
    ) -> SiteData:
        if self.form == "volumes":
            return volumes(parts, decoded, self.reading, device)
        channels, size = self._shape()
        return slices(parts, decoded, (channels, *size), device)

    def checksum(self) -> str:
        """Of an npz file; else of which files have which sizes at which centre."""
        if self.form == "arrays":
            return file_md5(self.layout.root)
        return self._md5(lambda pair: f"{pair.id}\t{pair.image.stat().st_size}\t{pair.mask.stat().st_size}")
