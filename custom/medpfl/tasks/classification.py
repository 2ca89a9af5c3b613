"""Classification: one class of several for each sample, or for a patient of several."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from medpfl.core.site_data import Part, SiteData
from medpfl.tasks.evaluation import evaluate, predict
from medpfl.tasks.measures import measures
from medpfl.tasks.paired import differences
from medpfl.tasks.task import Measure, Task

_MOST_LOSS = 12.0
"""A case that a model calls impossible must not decide alone."""
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class Measures(BaseModel):
    """Of one model on one part of a site's data."""

    model_config = ConfigDict(extra="forbid")

    n: Annotated[int, Field(ge=0, le=10**9)]
    accuracy: _Share | None
    balanced_accuracy: _Share | None
    auroc: _Share | None
    auroc_ci95: Annotated[list[_Share], Field(min_length=2, max_length=2)] | None
    auroc_classes: Annotated[int, Field(ge=0, le=10**5)]


class Classification(Task):
    """Cross-entropy of logits (B, classes) and labels (B,) int64."""

    name = "classification"
    measures = (
        Measure("accuracy", "accuracy"),
        Measure("balanced_accuracy", "balanced accuracy"),
        Measure("auroc", "AUC"),
    )
    schema = Measures
    one_class = True

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return cross_entropy(output, labels)

    def evaluate(self, model: nn.Module, data: SiteData, part: Part) -> dict[str, Any] | None:
        """:func:`medpfl.tasks.measures.measures` of its probabilities."""
        return evaluate(model, data, part)

    def predict(self, model: nn.Module, data: SiteData, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities (n, classes) and labels (n,)."""
        return predict(model, data, part)

    def pooled(self, predictions: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        """Of all samples together."""
        return measures(*map(np.concatenate, zip(*predictions, strict=True)))

    def losses(self, predictions: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Negative log probability of the label, at most :data:`_MOST_LOSS`."""
        probabilities, labels = predictions
        found = probabilities[np.arange(len(labels)), labels]
        return -np.log(np.clip(np.nan_to_num(found), np.exp(-_MOST_LOSS), 1))

    def mixed(
        self, first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], weight: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of probabilities; a case for which the second has none is the first's alone."""
        known = np.isfinite(second[0]).all(1, keepdims=True)
        return np.where(known, (1 - weight) * first[0] + weight * second[0], first[0]), first[1]

    def gained(
        self, new: tuple[np.ndarray, np.ndarray], old: tuple[np.ndarray, np.ndarray]
    ) -> dict[str, dict[str, float] | None]:
        """:func:`medpfl.tasks.paired.differences`."""
        return differences(new[0], old[0], new[1])
