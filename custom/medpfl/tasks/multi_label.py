"""Several labels a sample, each there or not, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from medpfl.core.measure import Measure
from medpfl.core.own_loaders import OtherLabels
from medpfl.core.site_data import Part, SiteData
from medpfl.tasks.auc import macro_auc
from medpfl.tasks.classification import FURTHER, FurtherMeasures, Interval, Share
from medpfl.tasks.evaluation import UNKNOWN, Cases, Predictions, predict
from medpfl.tasks.further import Drawn, draws, scarce
from medpfl.tasks.further_labels import further_of_labels, label_reliability, label_thresholds
from medpfl.tasks.intervals import mean_gain
from medpfl.tasks.of_probabilities import OfProbabilities
from medpfl.tasks.paired import auroc_gain
from medpfl.tasks.told import Enough, filled

_LEAST = 1e-5
"""Probability that a label has at least, so that no case decides alone."""


class Measures(FurtherMeasures):
    """Of one model on one part of a site's data; unknown labels count nowhere."""

    n: Annotated[int, Field(ge=0, le=10**9)]
    auroc: Share | None
    auroc_ci95: Interval | None
    auroc_ci95_by: Literal["patient", "sample"] | None = None
    auroc_by_label: Annotated[list[Share | None], Field(max_length=10**4)]
    accuracy: Share | None


class MultiLabel(OfProbabilities):
    """Binary cross-entropy of logits (B, labels) and labels (B, labels): 1 there, 0 not there, -1 not known."""

    name = "multi-label"
    measures = (
        Measure(
            "auroc",
            "AUC",
            interval="auroc_ci95",
            what="AUC is the area under the ROC curve, a mean over the labels that some of a site's test cases have "
            "and others have not",
        ),
        Measure(
            "accuracy",
            "accuracy of labels",
            what="accuracy of labels is the share of known labels that are predicted rightly, at a threshold of 0.5",
        ),
        *FURTHER,
    )
    schema = Measures
    labels = "labels"
    loss_name = "binary cross-entropy"
    sigmoid = True

    def misfit(self, output: Sequence[int], images: Sequence[int], classes: int) -> str | None:
        """See :class:`~medpfl.tasks.task.Task`: an output for each label."""
        return (
            None if len(output) == 2 and output[1] == classes else f"an output for each of {classes} labels is needed"
        )

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Mean over the labels that are known; loaders give a single one as (B,)."""
        labels = labels.reshape(len(labels), -1)
        if labels.shape != output.shape:
            raise OtherLabels(labels.shape[1], output.shape[1])
        known = labels >= 0
        found = binary_cross_entropy_with_logits(output, labels.clamp(min=0).to(output.dtype), reduction="none")
        return (found * known).sum() / known.sum().clamp(min=1)

    def predict(self, model: nn.Module, data: SiteData, part: Part) -> Predictions:
        """Probabilities and labels, (n, labels)."""
        probabilities, labels = predict(model, data, part, torch.sigmoid)
        return probabilities, labels.reshape(len(labels), -1)

    def values(
        self, predictions: Predictions, of: Cases = UNKNOWN, counting: np.ndarray | None = None
    ) -> dict[str, Any]:
        """The AUC is of the labels that some of the cases have and others have not."""
        probabilities, labels = predictions
        known, positive, finite = labels >= 0, labels == 1, np.isfinite(probabilities)
        both = (positive & known).any(0) & (~positive & known).any(0) & (True if counting is None else counting)
        used = np.flatnonzero(both) if finite.all() else np.empty(0, dtype=int)
        by_label: list[float | None] = [None] * labels.shape[1]
        area, interval = None, None
        if len(used):
            area, interval, each = macro_auc(probabilities[:, used].T, positive[:, used].T, known[:, used].T, of.whose)
            for label, value in zip(used, each, strict=True):
                by_label[label] = float(value)
        return {
            "n": len(labels),
            "auroc": area,
            "auroc_ci95": interval,
            "auroc_by_label": by_label,
            "accuracy": _right(probabilities, labels),
        }

    def told(self, predictions: Predictions, enough: Enough) -> dict[str, Any] | None:
        """The AUC of the labels that enough patients have and enough have not; accuracy if known ones are of enough.

        A patient with more known labels counts for more in it, so none may have more of them than one of enough equals.
        """
        probabilities, labels = predictions
        if not enough.patients(len(labels)):
            return None
        may, sure = _counting(labels, enough), filled(probabilities)
        found = self.counted((sure, labels), enough.of, may)
        return found | {"accuracy": _right(probabilities, labels) if _spread(labels, enough) else None}

    def gain_told(
        self, new: Predictions, old: Predictions, enough: Enough
    ) -> dict[str, dict[str, float] | None] | None:
        """As :meth:`told`."""
        labels = new[1]
        if not enough.patients(len(labels)):
            return None
        new, old = ((filled(p), y) for p, y in (new, old))
        found = self.gained(new, old, enough.of)
        accuracy = found["accuracy"] if _spread(labels, enough) else None
        counts = _counting(labels, enough)
        return {"auroc": found["auroc"] and _auroc_gain(new, old, enough.of.whose, counts), "accuracy": accuracy}

    def losses(self, predictions: Predictions) -> np.ndarray:
        """The mean over a case's known labels, 0 where none is: labels go together, so that a sum says too much."""
        probabilities, labels = predictions
        right = np.where(labels == 1, probabilities, 1 - probabilities)
        found = -np.log(np.clip(np.nan_to_num(right), _LEAST, 1))
        known = labels >= 0
        return (found * known).sum(1) / np.maximum(known.sum(1), 1)

    def gained(self, new: Predictions, old: Predictions, of: Cases = UNKNOWN) -> dict[str, dict[str, float] | None]:
        """DeLong's interval of the AUC; Student's of the share of right labels, a ratio of two sums over cases.

        A label whose probability is not finite is wrong, and there is no AUC then.
        """
        labels, known = new[1], new[1] >= 0
        if not len(labels):
            return dict.fromkeys(self.everywhere)
        finite = [np.isfinite(p[0]) for p in (new, old)]
        one, two = (((p[0] > 0.5) == (labels == 1)) & known & sure for p, sure in zip((new, old), finite, strict=True))
        cases = known.any(1)
        more, of_labels = (one.sum(1) - two.sum(1))[cases], known.sum(1)[cases]
        return {
            "auroc": _auroc_gain(new, old, of.whose) if all(sure.all() for sure in finite) else None,
            "accuracy": mean_gain(more, None if of.whose is None else of.whose[cases], of_labels.astype(float)),
        }

    def further(self, test: Predictions, validation: Predictions | None, owners: np.ndarray | None) -> Drawn | None:
        """As in a classification, of each label there or not; means over labels. Patients without any count nowhere."""
        known = (test[1] >= 0).any(1)
        if not known.any() or not np.isfinite(test[0]).all():
            return None
        probabilities, labels = (values[known] for values in test)
        owners = None if owners is None else owners[known]
        cuts = np.full(labels.shape[1], np.nan) if validation is None else label_thresholds(*validation)
        values = further_of_labels(probabilities, labels, cuts, draws(len(labels), owners))
        there = (labels == 1).any(0)
        few = scarce(labels[:, there] == 1, labels[:, there] == 0, cuts[there], owners)
        return Drawn.of(values, len(labels), owners, few)

    def detail(self, test: Predictions, model: nn.Module, data: SiteData) -> dict[str, Any]:
        """The ``reliability`` curve."""
        sure = (test[1] >= 0).any() and np.isfinite(test[0]).all()
        return {"reliability": label_reliability(*test)} if sure else {}


def _right(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """The share of known labels that are predicted rightly; what is not finite is wrong."""
    right = ((probabilities > 0.5) == (labels == 1)) & np.isfinite(probabilities)
    return float(right[labels >= 0].mean()) if (labels >= 0).any() else None


def _spread(labels: np.ndarray, enough: Enough) -> bool:
    """Whether no patient has more of the known labels than one of enough equals."""
    return enough.share((labels >= 0).sum(1).astype(float))


def _counting(labels: np.ndarray, enough: Enough) -> np.ndarray:
    """Which labels enough patients are known to have, and enough not to have, (labels,) bool."""
    return enough(labels == 1) & enough(labels == 0)


def _auroc_gain(
    new: Predictions, old: Predictions, whose: np.ndarray | None, counting: np.ndarray | None = None
) -> dict[str, float] | None:
    those = slice(None) if counting is None else counting
    labels = new[1][:, those]
    return auroc_gain(new[0][:, those], old[0][:, those], (labels == 1).T, (labels >= 0).T, whose)
