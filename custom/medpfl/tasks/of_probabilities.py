"""Tasks whose predictions are probabilities: what is measured of them, and of two models together."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from medpfl.tasks.evaluation import UNKNOWN, Cases, Predictions, joined, mixed
from medpfl.tasks.task import Task


class OfProbabilities(Task):
    """Among whose measures is an AUC with its interval, ``auroc_ci95``."""

    @abstractmethod
    def values(
        self, predictions: Predictions, of: Cases = UNKNOWN, counting: np.ndarray | None = None
    ) -> dict[str, Any]:
        """The measures of one set of cases.

        Args:
            predictions: probabilities (n, classes), and labels as the task has them.
            of: whose they are.
            counting: (classes,) bool, which classes means over classes may take; by default all.
        """

    def pooled(self, predictions: list[Predictions]) -> dict[str, Any]:
        """Of all samples together."""
        return self.values(joined(predictions))

    def figures(self, predictions: Predictions, of: Cases = UNKNOWN) -> dict[str, Any]:
        """See :class:`~medpfl.tasks.task.Task`: :meth:`pooled`'s, to which a task may add others."""
        found = self.pooled([predictions])
        known = found if of.whose is None and "auroc_ci95" in found else self.values(predictions, of)
        ends = known["auroc_ci95"]
        return found | {"auroc_ci95": ends, "auroc_ci95_by": of.by if ends else None}

    def counted(self, predictions: Predictions, of: Cases, counting: np.ndarray | None = None) -> dict[str, Any]:
        """With ``auroc_ci95_by``, what the interval is over; ``counting`` as in :meth:`values`."""
        found = self.values(predictions, of, counting)
        return found | {"auroc_ci95_by": of.by if found["auroc_ci95"] else None}

    def mixed(self, first: Predictions, second: Predictions, weight: float) -> Predictions:
        """See :func:`medpfl.tasks.evaluation.mixed`."""
        return mixed(first, second, weight)

    def mixed_losses(self, first: Predictions, second: Predictions, weight: float) -> np.ndarray:
        """Of the mixed probabilities."""
        return self.losses(self.mixed(first, second, weight))
