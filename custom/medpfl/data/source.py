"""What every source of sites' data can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from medpfl.algorithms.base import Value
from medpfl.data.inputs import Inputs
from medpfl.site.data import SiteData


class DataSource(Protocol):
    """Where sites' data come from."""

    def model_arguments(self) -> dict[str, Any]:
        """``in_channels``, ``num_classes`` and ``image_size`` for the model, as far as the data say."""

    def prepare(self) -> None:
        """Reads what a simulation will need, so that what is wrong with it is said before any process starts."""

    def site(self, name: str, device: torch.device) -> SiteData:
        """One site's data, on the device."""

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """A share of all sites' training data together; UserError unless this is a simulation."""

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """Centres that take no part in training, by name: all samples as the test part, or divided as a site's."""

    def start_images(self, settings: Mapping[str, Value]) -> Tensor:
        """What a federated impression starts from, (n, C, H, W) float32, by the settings ``start`` and ``images``."""

    def describe(self) -> dict[str, Any]:
        """The ``data`` part of results.json."""

    def inputs(self) -> Inputs | None:
        """How a new file becomes the network's input; None where only the user's own code knows."""
