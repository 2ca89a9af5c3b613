"""Measures, and how they are made again of what rests on enough patients, for whoever may not know more.

A mean over classes, labels, structures or cases tells of single patients where one of these has few: a server that
chooses the model reads the place of a label's one case among the others from its AUC. What may be told is therefore
computed anew, without what too few patients count for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from medpfl.tasks.evaluation import UNKNOWN, Cases
from medpfl.tasks.intervals import by_patient


@dataclass(frozen=True)
class Enough:
    """Which groups of cases hold at least so many patients.

    Attributes:
        least: patients.
        of: whose the cases are.
    """

    least: int
    of: Cases = UNKNOWN

    def __call__(self, there: np.ndarray) -> np.ndarray:
        """For each group whether its cases are of enough patients, (groups,) bool.

        Args:
            there: (n, groups) bool, which cases are in it.
        """
        return self.sums(there.astype(float)).astype(bool).sum(0) >= self.least

    def patients(self, cases: int) -> bool:
        """Whether so many cases are of enough patients."""
        return bool(self(np.ones((cases, 1), dtype=bool))[0])

    def share(self, weights: np.ndarray) -> bool:
        """Whether no patient weighs more in a sum than one of so many would who weigh the same.

        Args:
            weights: of each case, (n,), none below 0.
        """
        of_each = self.sums(weights[:, None])
        return bool(of_each.sum() > 0 and of_each.max() * self.least <= of_each.sum())

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Of each patient's cases, (patients, groups).

        Args:
            values: of each case, (n, groups), none below 0.
        """
        return by_patient(values.T, self.of.whose).T


def filled(scores: np.ndarray) -> np.ndarray:
    """With 0 for what is not finite: whether a measure is told would say that a model broke on some case."""
    return np.where(np.isfinite(scores), scores, 0.0)


class Measured(dict[str, Any]):
    """Plain values by name, as a site knows them, that can be made again of what rests on enough patients.

    Args:
        values: by name.
        told: makes them again; None if there is nothing of them.
        of: whose the cases are.
    """

    def __init__(self, values: Mapping[str, Any], told: Callable[[Enough], dict[str, Any] | None], of: Cases = UNKNOWN):
        super().__init__(values)
        self._told, self._of = told, of

    def told(self, least: int) -> dict[str, Any] | None:
        """As they may be told where fewer than ``least`` patients may not count for any; None for one that may not."""
        found = self._told(Enough(least, self._of))
        return None if found is None else dict.fromkeys(self) | found

    def with_more(self, values: Mapping[str, Any]) -> Measured:
        """With others beside them, which are not told."""
        return Measured({**self, **values}, self._told, self._of)
