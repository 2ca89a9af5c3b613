"""What every source of sites' data can do."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from medpfl.core.site_data import PARTS, Part, SiteData
from medpfl.data.inputs import Inputs


class DataSource(Protocol):
    """Where sites' data come from."""

    def model_arguments(self) -> dict[str, Any]:
        """``in_channels``, ``num_classes`` and ``image_size`` for the model, as far as the data say."""

    def prepare(self) -> None:
        """Reads what a simulation will need, so that what is wrong with it is said before any process starts."""

    def site(self, name: str, device: torch.device) -> SiteData:
        """One site's data, on the device."""

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """A share of all sites' training data together; NotInOnePlace unless this is a simulation."""

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """Centres that take no part in training, by name: all samples as the test part, or divided as a site's."""

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """Images that no site has, (at most ``count``, C, H, W) float32 as models take them, without their labels.

        Drawn without replacement; UserError, which says why, if there are none.
        """

    def fitting_classes(self, called: str) -> tuple[str, ...]:
        """The classes of a site's own data.

        Args:
            called: what the job calls the data.

        Raises:
            UserError: classes, channels or size are not the job's.
        """

    def in_words(self) -> str:
        """Whose data a job takes, for whoever sends it."""

    def describe(self) -> dict[str, Any]:
        """The ``data`` part of results.json."""

    def inputs(self) -> Inputs | None:
        """How a new file becomes the network's input; None where only the user's own code knows."""


def checksum(source: DataSource) -> str | None:
    """What :meth:`DataSource.describe` has as ``md5``, from a source that can say it by itself; else None."""
    found = getattr(source, "checksum", None)
    return None if found is None else found()


def training_patients(source: DataSource, name: str) -> frozenset[str] | None:
    """Whose samples a site trains on, or which, where nobody knows whose they are.

    From a source that says it by a method of this name; None from others, such as one's own function.
    """
    found = getattr(source, "training_patients", None)
    return None if found is None else found(name)


def number_of_patients(source: DataSource, name: str) -> dict[Part, int] | None:
    """Patients by part at a site; samples where nobody knows whose they are. No image is decoded.

    From a source that has a method ``patients``; None from others, such as one's own function.
    """
    found = getattr(source, "patients", None)
    return None if found is None else {part: len(found(name, part)) for part in PARTS}


def number_of_values(source: DataSource, name: str) -> int | None:
    """Numbers that :meth:`DataSource.site` makes of a site's images, at most: samples x channels x shape.

    Of each image that is decoded, also of one that no part has. Masks and labels are not counted, but what judging the
    largest case with masks takes. No image is decoded.
    From a source that has a method ``values``; None from others, such as one's own function.

    Raises:
        UserError: the data cannot be read as far as that needs.
    """
    found = getattr(source, "values", None)
    return None if found is None else found(name)


def images_per_sample(source: DataSource) -> int:
    """Images that a sample has, at most: more than one where it is a bag of slices."""
    return getattr(source, "images_per_sample", 1)


def input_format(source: DataSource) -> dict[str, Any]:
    """``in_channels``, ``num_classes``, ``image_size`` and names of ``classes``, as far as the data say them.

    Numbers that an npz file has in the place of names are none. No image is read for it.
    """
    inputs = source.inputs()
    return source.model_arguments() | ({"classes": list(inputs.classes)} if inputs and inputs.named else {})
