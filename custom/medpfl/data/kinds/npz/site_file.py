"""A hospital's own images in one npz file, all of them that site's: the job says what they are, the site where.

The job has the classes and what the images look like: by the name of a published set, or as ``data_args`` ``classes``,
``size`` and ``channels``, as for folders of pictures. The server needs no more, and other sites may have folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from medpfl.core.errors import NotInOnePlace, UserError
from medpfl.core.site_data import PARTS, ImageTensors, Part, SiteData, padded
from medpfl.data.arguments import named_classes, read_arguments
from medpfl.data.centres import described_elsewhere
from medpfl.data.dataset import ImageDataset
from medpfl.data.inputs import Inputs, stored_images
from medpfl.data.kinds.folders.picture_file import Reading
from medpfl.data.kinds.npz.medmnist import image_shape, known_set
from medpfl.data.kinds.npz.npz_file import channels_first, load, number_of_images, padded_edge
from medpfl.data.partition.known_patients import Image, images_of, split_known
from medpfl.data.split import SiteIndices, official_parts, split_own

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig


@dataclass(frozen=True)
class Look:
    """What the images of all sites look like: channels, and edge lengths in pixels in the files and for the model."""

    channels: int
    size: int
    edge: int


@dataclass
class OwnImages:
    """Images that each site has in a file of its own.

    Attributes:
        config: the run.
        file: the site's file; None at the server and where a job is made.
    """

    config: RunConfig
    file: Path | None = None

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names, as the job says them."""
        if named := named_classes(self.config.data_args):
            return named
        if known := known_set(self.config.data):
            return tuple(known.classes)
        raise UserError(f"--data-arg classes is missing: {self.config.data} is no published set; name the classes")

    @cached_property
    def look(self) -> Look:
        """Size and channels, as the job says them; UserError names what is wrong."""
        published = image_shape(self.config.data)
        if published is None or "channels" in self.config.data_args:
            try:
                reading = read_arguments(Reading, self.config.data_args)
            except UserError:  # what is not there is taken for a file, whatever it was
                if self.file is None or self.file.exists():
                    raise
                raise UserError(
                    f"{self.file}: the site's data are not there: moved, renamed, or a drive that is not mounted?"
                ) from None
            return Look(3 if reading.channels == "rgb" else 1, reading.size, reading.size)
        channels, size = published
        edge = padded_edge(self.config.data_args, size)
        if unknown := self.config.data_args.keys() - {"pad"}:
            raise UserError(f"--data-arg {min(unknown)}: {self.config.data} has the argument pad alone")
        return Look(channels, size, edge)

    @cached_property
    def dataset(self) -> ImageDataset:
        """The site's images.

        Raises:
            UserError: see :meth:`require_fit`.
        """
        found = load(self._own)
        self.require_fit(found)
        return found

    @property
    def _own(self) -> Path:
        """The site's file; UserError where there is none."""
        if self.file is None:
            raise UserError(
                f"{self.config.data}: with the partition natural each site has a file of its own (`medpfl site init`), "
                "and this is not one; a simulation needs another --partition"
            )
        return self.file

    def require_fit(self, found: ImageDataset) -> None:
        """Raises UserError, with the file's name, where images are not what the job says."""
        job, file = f"the job {self.config.data!r} has", found.source
        if found.volumes or found.several_labels:
            what = (channels_first(found) or "volumes") if found.volumes else "several labels an image"
            raise UserError(f"{file}: has {what}; {job} pictures with one label each")
        if found.size != self.look.size:
            raise UserError(f"{file}: images of {found.size} pixels; {job} {self.look.size}")
        if found.channels != self.look.channels:
            kinds = {1: "grey", 3: "colour"}
            raise UserError(f"{file}: {kinds[found.channels]} images; {job} {kinds[self.look.channels]} ones")
        if (highest := int(found.labels.max())) >= len(self.classes):
            raise UserError(
                f"{file}: has the label {highest}; {job} {len(self.classes)} classes, 0 to "
                f"{len(self.classes) - 1}: {', '.join(self.classes)}"
            )

    def model_arguments(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`."""
        return {
            "in_channels": self.look.channels,
            "num_classes": len(self.classes),
            "image_size": self.look.edge,
        }

    def prepare(self) -> None:
        """See :class:`medpfl.data.source.DataSource`: there is nothing to simulate."""
        _ = self.dataset

    def site(self, name: str, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`: the whole file, in its own parts or divided anew."""
        parts = self._parts(name)
        if not len(parts.train):
            raise UserError(f"{self.file}: no training image is left; raise the share of training images")
        rows = {part: getattr(parts, part) for part in PARTS}
        return ImageTensors(
            images={
                part: padded(self.dataset.images_chw(chosen), self.look.edge).to(device)
                for part, chosen in rows.items()
            },
            labels={part: torch.from_numpy(self.dataset.labels[chosen]).to(device) for part, chosen in rows.items()},
            persons=self.dataset.persons_chosen(rows, device),
        )

    def values(self, name: str) -> int:
        """See :func:`medpfl.data.source.number_of_values`: of the whole file."""
        return number_of_images(self._own) * self.look.channels * self.look.edge**2

    @cached_property
    def _images(self) -> list[Image]:
        """Whose all images are."""
        return images_of(self.dataset, np.arange(len(self.dataset)), self.config.official)

    def _parts(self, name: str) -> SiteIndices:
        c = self.config
        if self.dataset.patients is not None:
            return split_known(self.dataset, self._images, name, c.fractions, c.train_fraction, c.seed)
        if c.official:
            return official_parts(name, np.asarray(self.dataset.split), c.train_fraction, c.seed)
        return split_own(name, len(self.dataset), c.fractions, c.train_fraction, c.seed)

    def training_patients(self, name: str) -> frozenset[str]:
        """See :func:`medpfl.data.source.training_patients`."""
        return self.patients(name, "train")

    def patients(self, name: str, part: Part) -> frozenset[str]:
        """Whose the samples of a part of a site's data are; each another's where the file does not say it."""
        return self.dataset.people_of(getattr(self._parts(name), part))

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """See :class:`medpfl.data.source.DataSource`."""
        raise NotInOnePlace("hospitals' images are not pooled")

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """See :class:`medpfl.data.source.DataSource`: a job at sites has none."""
        return {}

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """See :class:`medpfl.data.source.DataSource`; no image leaves a site for it."""
        raise UserError("hospitals' images do not leave them")

    def inputs(self) -> Inputs:
        """See :class:`medpfl.data.source.DataSource`."""
        return stored_images(self.classes, self.look.channels, self.look.size, self.look.edge)

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """See :class:`medpfl.data.source.DataSource`."""
        _ = self.dataset  # refused if it does not fit
        return self.classes

    def in_words(self) -> str:
        """See :class:`medpfl.data.source.DataSource`."""
        classes = ", ".join(f"{label} {name}" for label, name in enumerate(self.inputs().classes))
        return f"each site's own images in npz files {self.config.data!r}, classes {classes}"

    def describe(self) -> dict[str, Any]:
        """See :class:`medpfl.data.source.DataSource`: what the job says; numbers come from the sites."""
        return described_elsewhere(self.config.data, self.classes)
