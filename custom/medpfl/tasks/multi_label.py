"""Several labels a sample, each there or not, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from medpfl.core.site_data import Part, SiteData
from medpfl.tasks.auc import macro_auc
from medpfl.tasks.classification import Interval, Share
from medpfl.tasks.evaluation import UNKNOWN, Cases, Predictions, mixed, predict
from medpfl.tasks.intervals import mean_interval
from medpfl.tasks.paired import auroc_gain
from medpfl.tasks.task import Measure, Task

_LEAST = 1e-5
"""Probability that a label has at least, so that no case decides alone."""


class Measures(BaseModel):
    """Of one model on one part of a site's data; unknown labels count nowhere."""

    model_config = ConfigDict(extra="forbid")

    n: Annotated[int, Field(ge=0, le=10**9)]
    auroc: Share | None
    auroc_ci95: Interval | None
    auroc_ci95_by: Literal["patient", "sample"] | None = None
    auroc_by_label: Annotated[list[Share | None], Field(max_length=10**4)]
    accuracy: Share | None


class MultiLabel(Task):
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
        """Mean over the labels that are known."""
        known = labels >= 0
        found = binary_cross_entropy_with_logits(output, labels.clamp(min=0).to(output.dtype), reduction="none")
        return (found * known).sum() / known.sum().clamp(min=1)

    def predict(self, model: nn.Module, data: SiteData, part: Part) -> Predictions:
        """Probabilities and labels, (n, labels)."""
        return predict(model, data, part, torch.sigmoid)

    def pooled(self, predictions: list[Predictions]) -> dict[str, Any]:
        """Of all samples together."""
        return self._of(*map(np.concatenate, zip(*predictions, strict=True)))

    def measured(self, predictions: Predictions, of: Cases = UNKNOWN) -> dict[str, Any]:
        """See :class:`~medpfl.tasks.task.Task`."""
        found = self._of(*predictions, of.whose)
        return found | {"auroc_ci95_by": of.by if found["auroc_ci95"] else None}

    def _of(self, probabilities: np.ndarray, labels: np.ndarray, whose: np.ndarray | None = None) -> dict[str, Any]:
        known, positive, finite = labels >= 0, labels == 1, np.isfinite(probabilities)
        right = ((probabilities > 0.5) == positive) & finite
        both = (positive & known).any(0) & (~positive & known).any(0)
        used = np.flatnonzero(both) if finite.all() else np.empty(0, dtype=int)
        by_label: list[float | None] = [None] * labels.shape[1]
        area, interval = None, None
        if len(used):
            area, interval, each = macro_auc(probabilities[:, used].T, positive[:, used].T, known[:, used].T, whose)
            for label, value in zip(used, each, strict=True):
                by_label[label] = float(value)
        return {
            "n": len(labels),
            "auroc": area,
            "auroc_ci95": interval,
            "auroc_by_label": by_label,
            "accuracy": float(right[known].mean()) if known.any() else None,
        }

    def losses(self, predictions: Predictions) -> np.ndarray:
        """The mean over a case's known labels, 0 where none is: labels go together, so that a sum says too much."""
        probabilities, labels = predictions
        right = np.where(labels == 1, probabilities, 1 - probabilities)
        found = -np.log(np.clip(np.nan_to_num(right), _LEAST, 1))
        known = labels >= 0
        return (found * known).sum(1) / np.maximum(known.sum(1), 1)

    def mixed(self, first: Predictions, second: Predictions, weight: float) -> Predictions:
        """See :func:`medpfl.tasks.evaluation.mixed`."""
        return mixed(first, second, weight)

    def mixed_losses(self, first: Predictions, second: Predictions, weight: float) -> np.ndarray:
        """Of the mixed probabilities."""
        return self.losses(self.mixed(first, second, weight))

    def gained(self, new: Predictions, old: Predictions, of: Cases = UNKNOWN) -> dict[str, dict[str, float] | None]:
        """DeLong's interval of the AUC; Student's of each case's share of right labels."""
        labels, known = new[1], new[1] >= 0
        if not len(labels) or not (np.isfinite(new[0]).all() and np.isfinite(old[0]).all()):
            return dict.fromkeys(self.names)
        one, two = (((p[0] > 0.5) == (labels == 1)) & known for p in (new, old))
        cases = known.any(1)
        change = (one.sum(1) - two.sum(1))[cases] / known.sum(1)[cases]
        ends = mean_interval(change, None if of.whose is None else of.whose[cases])
        return {
            "auroc": auroc_gain(new[0], old[0], (labels == 1).T, known.T, of.whose),
            "accuracy": ends and {"difference": float(change.mean()), "low": ends[0], "high": ends[1]},
        }
