"""What is learned, as an object: loss, predictions and measures. The loop knows none of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel
from torch import Tensor, nn

from medpfl.core.measure import LOSS, Measure
from medpfl.core.site_data import Part, SiteData, most_at_once
from medpfl.tasks.evaluation import UNKNOWN, Cases, cases
from medpfl.tasks.further import Drawn
from medpfl.tasks.told import Enough, Measured


class Task(ABC):
    """A task.

    Attributes:
        name: in a run's configuration.
        measures: what is summarised over sites; the first is what reports begin with.
        schema: of :meth:`evaluate`'s answer, which both ends check.
        labels: what the data must have: a ``class`` for each sample, several ``labels``, or a ``mask``.
        network: that is trained where the user names none.
        loss_rests_on_cases: the loss has a term for each case of any class alike; else one for structures or labels,
            which may be of few patients.
        one_class: every sample is of one class of several.
        sigmoid: outputs are independent of each other, not shares of one.
        loss_name: in results.
        for_few: the measure that selects the round where there are few validation cases; empty for the first.
        least_cases: independent test cases below which the interval of a gain holds less often than it says.
        for_one_sided: the measure to look at where most cases are of one class; empty where the first will do.
    """

    name: ClassVar[str]
    measures: ClassVar[tuple[Measure, ...]]
    schema: ClassVar[type[BaseModel]]
    labels: ClassVar[Literal["class", "labels", "mask"]] = "class"
    network: ClassVar[str] = "lenet5"
    loss_rests_on_cases: ClassVar[bool] = False
    one_class: ClassVar[bool] = False
    sigmoid: ClassVar[bool] = False
    loss_name: ClassVar[str] = "cross-entropy"
    for_few: ClassVar[str] = LOSS.name
    for_one_sided: ClassVar[str] = ""
    least_cases: ClassVar[int] = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the measures."""
        return tuple(measure.name for measure in self.measures)

    @property
    def everywhere(self) -> tuple[str, ...]:
        """Of the measures that every evaluation has."""
        return tuple(measure.name for measure in self.measures if not measure.further)

    @property
    def selecting(self) -> tuple[str, ...]:
        """Of the measures that a round may be selected by; the first is the default."""
        return tuple(measure.name for measure in self.measures if measure.selects and not measure.further)

    @property
    def signs(self) -> dict[str, int]:
        """By measure 1 where more is better, -1 where less is."""
        return {measure.name: 1 if measure.better == "higher" else -1 for measure in self.measures}

    @property
    def spans(self) -> tuple[tuple[str, float], ...]:
        """By measure the most that it can change by."""
        return tuple((measure.name, measure.span) for measure in self.measures)

    def described(self) -> list[dict[str, Any]]:
        """The measures as results.json has them, for whoever reads it without this package."""
        return [measure.described() for measure in self.measures]

    def misfit(self, output: Sequence[int], images: Sequence[int], classes: int) -> str | None:
        """Why a network's output is none of this task; None where it is.

        Args:
            output: its shape, (B, ...).
            images: of its input, (B, C, ...).
            classes: of the data.
        """
        if len(output) != 2 or output[1] != classes:
            return f"a classifier of {classes} classes is needed"
        return None

    def looked_at_once(self, image: Sequence[int], images: int = 1) -> int:
        """Samples in a batch that is predicted, or of which statistics are taken, at most.

        Args:
            image: its shape, (C, ...).
            images: of a sample, more than one of a bag.
        """
        return most_at_once(images * prod(image), images)

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """What training minimises: the mean over a batch of a network's output (B, ...).

        One that takes ``weight``, (classes,), too, lets a run have ``class_weights``.
        """

    @abstractmethod
    def pooled(self, predictions: list[Any]) -> dict[str, Any]:
        """The measures on several sites' predictions together, as plain numbers.

        A measure that cannot be computed is None, never NaN and never 0.
        """

    @abstractmethod
    def predict(self, model: nn.Module, data: SiteData, part: Part) -> Any:
        """Predictions on a part, with what they are to be compared with, as :meth:`pooled` takes them."""

    def evaluate(self, model: nn.Module, data: SiteData, part: Part) -> Measured | None:
        """The measures of a model on a part of a site's data; None if the site has no such samples."""
        return self.measured(self.predict(model, data, part), cases(data, part)) if data.samples(part) else None

    def measured(self, predictions: Any, of: Cases = UNKNOWN) -> Measured:
        """The measures on predictions, as :meth:`evaluate` gives them.

        Args:
            predictions: of one site.
            of: whose they are.
        """
        return Measured(self.figures(predictions, of), lambda enough: self.told(predictions, enough), of)

    def figures(self, predictions: Any, of: Cases = UNKNOWN) -> dict[str, Any]:
        """The same as plain numbers; a task with intervals makes them over patients where these are known, and says so.

        By default :meth:`pooled` of these predictions alone.
        """
        return self.pooled([predictions])

    def by_class(self, predictions: list[Any]) -> list[float | None] | None:
        """Of several sites' cases of each class together the share that is right, None for a class without any.

        By default None: cases are not of one class each.
        """
        return None

    def never_answered(self, predictions: Any) -> dict[int, int]:
        """Cases by class of the classes that some are of and that no prediction says; for the site's own folder.

        By default none: cases are not of one class each.
        """
        return {}

    def told(self, predictions: Any, enough: Enough) -> dict[str, Any] | None:
        """The measures that may leave where fewer patients than ``enough`` says may not count for any.

        What a mean takes of fewer is left out of it, and a measure of which that cannot be said is None. By default
        none is told.
        """
        return None

    @abstractmethod
    def losses(self, predictions: Any) -> np.ndarray:
        """The loss of every case, (n,), finite, in nats; for the choice between models."""

    def mixed(self, first: Any, second: Any, weight: float) -> Any | None:
        """Predictions on the same cases by ``weight`` times the second's and the rest the first's.

        A case for which one of the two has no finite prediction has the other's, but for a weight of 0 or 1. None where
        only the two networks together can tell (:class:`medpfl.models.blend.Blend`).
        """
        return None

    @abstractmethod
    def mixed_losses(self, first: Any, second: Any, weight: float) -> np.ndarray:
        """:meth:`losses` of :meth:`mixed`, of every task."""

    @abstractmethod
    def gained(self, new: Any, old: Any, of: Cases = UNKNOWN) -> dict[str, dict[str, float] | None]:
        """By measure what predictions gain over others on the same cases: ``difference``, ``low`` and ``high``.

        Above 0 is better, also where less of a measure is.
        """

    def compared(self, new: Any, old: Any, of: Cases = UNKNOWN) -> Measured:
        """:meth:`gained`, as :meth:`measured` has measures.

        An interval ends where the measure can change no more: Student's of two or three cases goes beyond.
        """
        spans = dict(self.spans)

        def within(found: dict[str, dict[str, float] | None]) -> dict[str, dict[str, float] | None]:
            return {
                name: gain and gain | {"low": max(gain["low"], -spans[name]), "high": min(gain["high"], spans[name])}
                for name, gain in found.items()
            }

        def told(enough: Enough) -> dict[str, dict[str, float] | None] | None:
            found = self.gain_told(new, old, enough)
            return None if found is None else within(found)

        return Measured(within(self.gained(new, old, of)), told, of)

    def gain_told(self, new: Any, old: Any, enough: Enough) -> dict[str, dict[str, float] | None] | None:
        """:meth:`gained`, as :meth:`told` has measures."""
        return None

    def further(self, test: Any, validation: Any | None, owners: np.ndarray | None) -> Drawn | None:
        """Further measures of a model under bootstrap draws (:mod:`medpfl.tasks.further`); None where there are none.

        Args:
            test: predictions.
            validation: predictions, for thresholds; None where there are no such data.
            owners: (n,) of which patient each test case is; None where each is of its own.
        """
        return None

    def detail(self, test: Any, model: nn.Module, data: SiteData) -> dict[str, Any]:
        """What only whoever has the data may see of a test: cases one by one, pictures, curves; plain values.

        Args:
            test: predictions of the model on the test part.
            model: with its values.
            data: the site's.
        """
        return {}

    def mean_loss(self, model: nn.Module, data: SiteData, part: Part) -> float | None:
        """The mean of :meth:`losses` on a part; None if the site has no such samples."""
        if not data.samples(part):
            return None
        return float(self.losses(self.predict(model, data, part)).mean())

    def validated(self, model: nn.Module, data: SiteData, by: str) -> dict[str, Any]:
        """What a site tells of a model on its validation data.

        Returns:
            ``validation``: the measures; and ``validation_loss`` where rounds are selected ``by`` it.
        """
        if by != LOSS.name:
            return {"validation": self.evaluate(model, data, "validation")}
        if not data.samples("validation"):
            return {"validation": None, "validation_loss": None}
        predictions = self.predict(model, data, "validation")
        found = self.measured(predictions, cases(data, "validation"))
        return {"validation": found, "validation_loss": float(self.losses(predictions).mean())}

    def score(self, told: Mapping[str, Any], by: str) -> float | None:
        """What :meth:`validated` told, as the number by which rounds are compared: more is better."""
        if by != LOSS.name:
            return self.value(told.get("validation"), by)
        loss = told.get("validation_loss")
        return None if loss is None else -loss

    def value(self, measured: Mapping[str, Any] | None, by: str) -> float | None:
        """The measure by which rounds are compared, so that more is better."""
        if measured is None or (found := measured[by]) is None:
            return None
        return self.signs[by] * found
