"""What is learned, as an object: loss, predictions and measures. The loop knows none of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel
from torch import Tensor, nn

from medpfl.core.site_data import Part, SiteData


class Measure(NamedTuple):
    """A number that says how good predictions are.

    Attributes:
        name: in results.
        title: in print.
        least: that it can be.
        most: that it can be; the best.
    """

    name: str
    title: str
    least: float = 0.0
    most: float = 1.0


class Task(ABC):
    """A task.

    Attributes:
        name: in a run's configuration.
        measures: what is summarised over sites; the first selects the round by default.
        schema: of :meth:`evaluate`'s answer, which both ends check.
        one_class: every sample is of one class of several.
    """

    name: ClassVar[str]
    measures: ClassVar[tuple[Measure, ...]]
    schema: ClassVar[type[BaseModel]]
    one_class: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the measures."""
        return tuple(measure.name for measure in self.measures)

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """What training minimises: the mean over a batch of a network's output (B, ...)."""

    @abstractmethod
    def evaluate(self, model: nn.Module, data: SiteData, part: Part) -> dict[str, Any] | None:
        """The measures of a model on a part of a site's data, as plain numbers; None if the site has no such samples.

        A measure that cannot be computed is None, never NaN and never 0.
        """

    @abstractmethod
    def pooled(self, predictions: list[Any]) -> dict[str, Any]:
        """The measures on several sites' predictions together."""

    @abstractmethod
    def predict(self, model: nn.Module, data: SiteData, part: Part) -> Any:
        """Predictions and labels of a part, as :meth:`pooled` takes them."""

    def measured(self, predictions: Any) -> dict[str, Any]:
        """The measures on predictions, as :meth:`evaluate` gives them."""
        return self.pooled([predictions])

    @abstractmethod
    def losses(self, predictions: Any) -> np.ndarray:
        """The loss of every case, (n,), finite; for the choice between models."""

    @abstractmethod
    def mixed(self, first: Any, second: Any, weight: float) -> Any:
        """Predictions on the same cases by ``weight`` times the second's and the rest the first's.

        A case for which the second has no finite prediction has the first's.
        """

    @abstractmethod
    def gained(self, new: Any, old: Any) -> dict[str, dict[str, float] | None]:
        """By measure what predictions gain over others on the same cases: ``difference``, ``low`` and ``high``."""

    def mean_loss(self, model: nn.Module, data: SiteData, part: Part) -> float | None:
        """The mean of :meth:`losses` on a part; None if the site has no such samples."""
        if not data.samples(part):
            return None
        return float(self.losses(self.predict(model, data, part)).mean())

    def value(self, measured: Mapping[str, Any] | None, by: str) -> float | None:
        """The measure by which rounds are compared; more is better."""
        return None if measured is None else measured[by]
