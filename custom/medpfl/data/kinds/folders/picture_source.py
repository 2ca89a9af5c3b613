"""Pictures in folders as the sites' data: every centre is a site, its pictures divided by patient."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.gathered import gathered
from medpfl.core.site_data import PARTS, ImageTensors, Part, SiteData, scale
from medpfl.data.arguments import read_arguments
from medpfl.data.centres import Centres, SetsAside, as_sites, described_elsewhere, held_out_centres, is_divided
from medpfl.data.files import files_below, unread_pictures
from medpfl.data.finding import heed
from medpfl.data.inputs import Inputs, to_unit_range
from medpfl.data.kinds.folders.layout import Layout, Picture, find_folder, read_layout
from medpfl.data.kinds.folders.train_counts import FolderReading, require_countable, split_by_counts
from medpfl.data.labels import require_fit
from medpfl.data.people import people
from medpfl.data.places import cache_folder
from medpfl.data.split import rows_to_pretrain_on
from medpfl.data.uneven import JUDGED, judged_classes

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

log = logging.getLogger(__name__)


@dataclass
class Folders(SetsAside[Picture]):
    """The centres of a folder. In a simulation the first is site-1 and so on; a hospital's own has one centre.

    ``data_args`` are :class:`~medpfl.data.kinds.folders.train_counts.FolderReading`, the same at all sites, and
    ``classes``, the class names, for hospitals that may lack a class and whoever makes the job without the pictures.
    """

    config: RunConfig

    @cached_property
    def layout(self) -> Layout:
        """What there is; with a partition, one centre's pictures as those of simulated sites."""
        return replace(self._whole, centres=as_sites(self._whole.centres, self.config))

    @cached_property
    def _whole(self) -> Layout:
        found = read_layout(find_folder(self.config.data), self._classes, self.reading.patient)
        require_fit(self.config, found.several, found.root, "picture")
        if counts := self.reading.train_counts:
            if self.config.partition != "natural" or self.config.train_fraction != 1:
                raise UserError("--data-arg train_counts: says all, without --partition and --train-fraction")
            held_out = held_out_centres(tuple(found.centres), found.root, self.config.held_out)
            require_countable(found, counts, held_out)
        return found

    @property
    def _divided(self) -> bool:
        return is_divided(tuple(self._whole.centres), self.config)

    @cached_property
    def centres(self) -> Centres:
        """Which site is which centre."""
        return Centres(tuple(self.layout.centres), self.layout.root, self.config)

    @cached_property
    def reading(self) -> FolderReading:
        """How pictures are read; UserError names a wrong ``--data-arg``."""
        return read_arguments(FolderReading, self.config.data_args)

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`."""
        channels = 3 if self.reading.channels == "rgb" else 1
        classes = self._classes or self.layout.classes
        return {"in_channels": channels, "num_classes": len(classes), "image_size": self.reading.size}

    def prepare(self) -> None:
        """Reads every picture once, into the cache, and warns of those that are there twice.

        Raises:
            UserError: a picture cannot be read, or a patient is in different parts at two centres.
        """
        from medpfl.data.kinds.folders.repeats import repeated

        chosen = self.centres.used
        for centre in self._whole.centres if self._divided else chosen:
            self._images(centre)
        pictures = {centre: self.layout.centres[centre] for centre in chosen}
        if unread := unread_pictures(files_below(self.layout.root)):
            log.warning("%s", unread)
        for words in self.layout.unread:
            log.warning("%s", words)
        told = people(pictures) if self.layout.people else []
        heed(told + repeated(pictures, self.layout.classes), f"{self.layout.root}: ")

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        centre = self.centres.of(name)
        return self._tensors(centre, self._parts(centre), device)

    def values(self, name: str) -> int:
        """See :func:`medpfl.data.source.number_of_values`: a centre's pictures are decoded together, also divided."""
        shape, centre = self.model_arguments(), self.centres.of(name)
        (whole,) = self._whole.centres if self._divided else (centre,)
        return len(self._whole.centres[whole]) * shape["in_channels"] * shape["image_size"] ** 2

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        if not self._all_here():
            raise NotInOnePlace("hospitals' pictures are not pooled")
        every = [(centre, p) for centre in self.centres.sites.values() for p in self._parts(centre)["train"]]
        drawn = [every[row] for row in rows_to_pretrain_on(len(every), share, self.config.seed).tolist()]
        # A centre's pictures are taken together, and put back into the order in which they were drawn.
        by_centre = {centre: [k for k, (of, _) in enumerate(drawn) if of == centre] for centre in dict(drawn)}
        images = torch.cat([self._rows(centre, (drawn[k][1] for k in rows)) for centre, rows in by_centre.items()])
        back = torch.tensor([k for rows in by_centre.values() for k in rows]).argsort()
        labels = self._targets([picture for _, picture in drawn])
        none = back[:0]
        return ImageTensors(
            images={part: images[back if part == "train" else none].to(device) for part in PARTS},
            labels={part: (labels if part == "train" else labels[none]).to(device) for part in PARTS},
        )

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`."""
        return {centre: self._tensors(centre, parts, device) for centre, parts in self._held_out(divided).items()}

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`: the pictures that every site sets aside."""
        if not self._all_here():
            raise UserError("hospitals' pictures do not leave them")
        aside = [self._rows(centre, self._aside(centre)) for centre in self.centres.sites.values()]
        pool = torch.cat(aside)
        if not len(pool):
            raise UserError(f"--holdout {self.config.holdout}: too small a share, no site has a picture to set aside")
        chosen = np.sort(rng.permutation(len(pool))[:count])
        return gathered(len(chosen), tuple(pool.shape[1:]), lambda rows: scale(pool[chosen[rows]]))

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`."""
        return self.layout.classes

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        classes = ", ".join(f"{label} {name}" for label, name in enumerate(self.inputs().classes))
        return f"each site's own pictures {self.config.data!r}, classes {classes}"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`.

        Where the job names the classes and the centres are not all here, as on the server of real hospitals, no more
        than the job itself is known.
        """
        left_out = set() if self.reading.train_counts else {"train_counts"}
        reading = {"reading": self.reading.model_dump(mode="json", exclude=left_out)}
        if self._classes and not self._all_here():
            return described_elsewhere(self.config.data, self._classes) | reading
        sites = {}
        for name, centre in self.centres.sites.items():
            parts = self._parts(centre)
            counts = self.layout.counts(picture for part in parts.values() for picture in part)
            sites[name] = {
                **{part: len(pictures) for part, pictures in parts.items()},
                "classes": {str(c): n for c, n in enumerate(counts)},
                **self._judged(parts),
                "centre": centre,
                **self._in_patients(parts),
            }
        name = self.layout.root.resolve().name
        return self._described_here(name, self.checksum(), self.layout.classes, sites) | reading

    def _judged(self, parts: Mapping[Part, Sequence[Picture]]) -> dict[str, Any]:
        if self.layout.several:
            return {}
        labels = {part: [picture.label for picture in parts[part]] for part in JUDGED}
        return {"judged_classes": judged_classes(labels, len(self.layout.classes))}

    def inputs(self) -> Inputs:
        """See :class:`medpfl.data.source.DataSource`."""
        settings = self.reading.model_dump(mode="json", exclude={"patient", "train_counts"})
        read = {"_target_": "medpfl.bundle.pictures.ReadPictured", "keys": "image", **settings}
        shape, classes = self.model_arguments(), tuple(self._classes or self.layout.classes)
        size = shape["image_size"]
        return Inputs("picture", classes, shape["in_channels"], size, None, [read, to_unit_range()], settings)

    def _samples(self, centre: str) -> tuple[Picture, ...]:
        return self.layout.centres[centre]

    def _undivided(self) -> Mapping[str, Sequence[Picture]]:
        return self._whole.centres if self._divided else super()._undivided()

    def _drawn(self, centre: str) -> dict[Part, list[Picture]]:
        c = self.config
        if (counts := self.reading.train_counts.get(centre)) is None:
            return super()._drawn(centre)
        return split_by_counts(self._samples(centre), counts, c.fractions, c.seed, centre)

    def _images(self, centre: str) -> Tensor:
        """Pictures of a folder's centre in the order of the layout, (n, C, H, W) uint8."""
        from medpfl.data.kinds.folders.picture_cache import load_pictures

        return load_pictures(self._whole.centres[centre], self.reading, cache_folder() / "folders")

    @cached_property
    def _divided_images(self) -> Tensor:
        """Of the one centre that is divided: one file of the cache, whatever the partition, and read once."""
        (centre,) = self._whole.centres
        return self._images(centre)

    def _rows(self, centre: str, pictures: Iterable[Picture]) -> Tensor:
        """Some pictures of a site."""
        (whole,) = self._whole.centres if self._divided else (centre,)
        place = {picture.id: row for row, picture in enumerate(self._whole.centres[whole])}
        images = self._divided_images if self._divided else self._images(whole)
        return images[[place[picture.id] for picture in pictures]]

    def _targets(self, pictures: Sequence[Picture]) -> Tensor:
        """What a network learns of them, (n,) or (n, classes) int64."""
        targets = torch.tensor([picture.target for picture in pictures], dtype=torch.long)
        return targets.reshape((-1, len(self.layout.classes)) if self.layout.several else (-1,))

    def _tensors(self, centre: str, parts: Mapping[Part, Sequence[Picture]], device: torch.device) -> ImageTensors:
        images = self._rows(centre, (picture for part in PARTS for picture in parts[part]))
        pieces = images.split([len(parts[part]) for part in PARTS])
        return ImageTensors(
            images={part: piece.to(device) for part, piece in zip(PARTS, pieces, strict=True)},
            labels={part: self._targets(parts[part]).to(device) for part in PARTS},
            # Where nothing says the patients every picture is one, and that is not known.
            persons={part: _numbers(parts[part]).to(device) for part in PARTS if self.layout.people},
        )

    def checksum(self) -> str:
        """Of which file has which size and class at which centre."""
        return self._md5(lambda picture: f"{picture.id}\t{picture.target}\t{picture.file.stat().st_size}")


def _numbers(pictures: Sequence[Picture]) -> Tensor:
    """Whose the pictures are, by number."""
    known = {name: number for number, name in enumerate(dict.fromkeys(picture.patient for picture in pictures))}
    return torch.tensor([known[picture.patient] for picture in pictures], dtype=torch.long)
