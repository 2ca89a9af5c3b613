"""Classification: one class of several for each sample, or for a patient of several."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from medpfl.core.measure import Measure
from medpfl.core.own_loaders import LEFT_OUT, LabelOutside
from medpfl.core.site_data import Part, SiteData
from medpfl.tasks.evaluation import UNKNOWN, Cases, Predictions, joined, predict
from medpfl.tasks.further import Drawn, draws, further, of_classes, reliability, scarce, thresholds
from medpfl.tasks.measures import correct, measures, shares
from medpfl.tasks.of_probabilities import OfProbabilities
from medpfl.tasks.paired import differences
from medpfl.tasks.told import Enough, filled

_MOST_LOSS = 12.0
"""A case that a model calls impossible must not decide alone."""
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Interval = Annotated[list[Share], Field(min_length=2, max_length=2)]
_Ends = Annotated[list[Annotated[FiniteFloat, Field(ge=0, le=2)]], Field(min_length=2, max_length=2)]
Intervals = dict[Literal["sensitivity", "specificity", "f1", "average_precision", "brier", "ece"], _Ends]
"""95 % intervals of the further measures, by a bootstrap over patients."""


class FurtherMeasures(BaseModel):
    """Of the test of the selected round alone."""

    model_config = ConfigDict(extra="forbid")

    sensitivity: Share | None = None
    specificity: Share | None = None
    f1: Share | None = None
    average_precision: Share | None = None
    brier: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    ece: Share | None = None
    intervals: Intervals | None = None


class Measures(FurtherMeasures):
    """Of one model on one part of a site's data."""

    n: Annotated[int, Field(ge=0, le=10**9)]
    accuracy: Share | None
    balanced_accuracy: Share | None
    auroc: Share | None
    auroc_ci95: Interval | None
    auroc_ci95_by: Literal["patient", "sample"] | None = None
    auroc_classes: Annotated[int, Field(ge=0, le=10**5)]


FURTHER = (
    Measure(
        "sensitivity",
        "sensitivity",
        further=True,
        what="sensitivity is the share of a class's cases that are found, at the threshold that validation data chose",
    ),
    Measure(
        "specificity",
        "specificity",
        further=True,
        what="specificity is the share of the other cases that are not taken for that class, at the same threshold",
    ),
    Measure("f1", "F1", further=True, what="F1 is the harmonic mean of precision and recall of the predicted class"),
    Measure(
        "average_precision",
        "average precision",
        further=True,
        what="average precision is the area under the curve of precision over recall",
    ),
    Measure(
        "brier",
        "Brier score",
        most=2.0,
        better="lower",
        further=True,
        what="Brier score is the mean squared distance of the probabilities from what was true: less is better",
    ),
    Measure(
        "ece",
        "calibration error",
        better="lower",
        further=True,
        what="calibration error is how far the confidence of predictions is from the share that are right: less is "
        "better",
    ),
)


class Classification(OfProbabilities):
    """Cross-entropy of logits (B, classes) and labels (B,) int64."""

    name = "classification"
    measures = (
        Measure("accuracy", "accuracy", what="accuracy is the share of test cases that are classified correctly"),
        Measure("balanced_accuracy", "balanced accuracy", what="balanced accuracy gives every class the same weight"),
        Measure(
            "auroc",
            "AUC",
            interval="auroc_ci95",
            what="AUC is the macro one-vs-rest area under the ROC curve over the classes a site's test data hold",
        ),
        *FURTHER,
    )
    schema = Measures
    one_class = True
    loss_rests_on_cases = True
    for_one_sided = "balanced_accuracy"

    def loss(self, output: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Mean cross-entropy; with weights of the classes (C,), a weighted mean. 0 where all samples are left out."""
        try:
            mean = cross_entropy(output, labels, weight)
        except IndexError:  # of a loader's; labels in memory were looked at before
            raise LabelOutside(output.shape[1]) from None
        return torch.where((labels != LEFT_OUT).any(), mean, 0 * output.sum())

    def predict(self, model: nn.Module, data: SiteData, part: Part) -> Predictions:
        """Probabilities (n, classes) and labels (n,); LabelOutside for one beyond the classes.

        Training samples that the loss leaves out are not among them.
        """
        probabilities, labels = predict(model, data, part)
        if part == "train" and len(labels) and labels.min() == LEFT_OUT:
            probabilities, labels = probabilities[labels != LEFT_OUT], labels[labels != LEFT_OUT]
        if len(labels) and not 0 <= labels.min() <= labels.max() < probabilities.shape[1]:
            raise LabelOutside(probabilities.shape[1])
        return probabilities, labels

    def values(
        self, predictions: Predictions, of: Cases = UNKNOWN, counting: np.ndarray | None = None
    ) -> dict[str, Any]:
        """:func:`medpfl.tasks.measures.measures`."""
        return measures(*predictions, of.whose, counting)

    def by_class(self, predictions: list[Predictions]) -> list[float | None]:
        """See :class:`~medpfl.tasks.task.Task`: each class's recall."""
        probabilities, labels = joined(predictions)
        right = correct(probabilities, labels)
        return [
            float(right[labels == c].mean()) if (labels == c).any() else None for c in range(probabilities.shape[1])
        ]

    def never_answered(self, predictions: Predictions) -> dict[int, int]:
        """See :class:`~medpfl.tasks.task.Task`: a prediction says the most probable class, and none if not finite."""
        probabilities, labels = predictions
        said = set(probabilities.argmax(1)[np.isfinite(probabilities).all(1)].tolist())
        classes, numbers = np.unique(labels, return_counts=True)
        return {c: n for c, n in zip(classes.tolist(), numbers.tolist(), strict=True) if c not in said}

    def losses(self, predictions: Predictions) -> np.ndarray:
        """Negative log probability of the label, at most :data:`_MOST_LOSS`."""
        probabilities, labels = predictions
        found = probabilities[np.arange(len(labels)), labels]
        return -np.log(np.clip(np.nan_to_num(found), np.exp(-_MOST_LOSS), 1))

    def gained(self, new: Predictions, old: Predictions, of: Cases = UNKNOWN) -> dict[str, dict[str, float] | None]:
        """:func:`medpfl.tasks.paired.differences`."""
        return differences(new[0], old[0], new[1], of.whose)

    def told(self, predictions: Predictions, enough: Enough) -> dict[str, Any] | None:
        """The AUC of the classes that enough patients are of and enough are not; balanced accuracy if all are so."""
        probabilities, labels = predictions
        if not enough.patients(len(labels)):
            return None
        may, sure = counting(labels, probabilities.shape[1], enough), filled(probabilities)
        return self.counted((sure, labels), enough.of, may) | shares(probabilities, labels, may)

    def gain_told(
        self, new: Predictions, old: Predictions, enough: Enough
    ) -> dict[str, dict[str, float] | None] | None:
        """As :meth:`told`."""
        if not enough.patients(len(new[1])):
            return None
        may = counting(new[1], new[0].shape[1], enough)
        return differences(filled(new[0]), filled(old[0]), new[1], enough.of.whose, may)

    def further(self, test: Predictions, validation: Predictions | None, owners: np.ndarray | None) -> Drawn | None:
        """Sensitivity and specificity at the thresholds of the validation data, F1, calibration and more."""
        probabilities, labels = test
        if not len(labels) or not np.isfinite(probabilities).all():
            return None
        classes = probabilities.shape[1]
        cuts = np.full(classes, np.nan) if validation is None else thresholds(*validation)
        values = further(probabilities, labels, cuts, draws(len(labels), owners))
        true = labels[:, None] == np.arange(classes)
        counted = of_classes(true)
        few = scarce(true[:, counted], ~true[:, counted], cuts[counted], owners)
        return Drawn.of(values, len(labels), owners, few)

    def detail(self, test: Predictions, model: nn.Module, data: SiteData) -> dict[str, Any]:
        """The ``reliability`` curve."""
        return {"reliability": reliability(*test)} if len(test[1]) and np.isfinite(test[0]).all() else {}


def counting(labels: np.ndarray, classes: int, enough: Enough) -> np.ndarray:
    """Of which classes there are enough patients with it, and enough without, (classes,) bool."""
    there = labels[:, None] == np.arange(classes)
    return enough(there) & enough(~there)
