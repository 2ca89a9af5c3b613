"""Ordinal classification: grades, of which a near one is less wrong than a far one."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, FiniteFloat

from medpfl.core.measure import Measure
from medpfl.tasks.classification import FURTHER, Classification, FurtherMeasures, Share, counting
from medpfl.tasks.evaluation import UNKNOWN, Cases, Predictions, joined
from medpfl.tasks.intervals import ALIKE, bootstrap_interval, mean_gain
from medpfl.tasks.measures import correct, shares
from medpfl.tasks.paired import share_differences
from medpfl.tasks.told import Enough, filled


class Measures(FurtherMeasures):
    """Of one model on one part of a site's data."""

    n: Annotated[int, Field(ge=0, le=10**9)]
    kappa: Annotated[FiniteFloat, Field(ge=-1, le=1)] | None
    mae: Annotated[FiniteFloat, Field(ge=0, le=10**5)] | None
    accuracy: Share | None
    balanced_accuracy: Share | None


class Ordinal(Classification):
    """Cross-entropy as in classification; the predicted grade is the most probable one."""

    name = "ordinal"
    measures = (
        Measure(
            "kappa",
            "quadratic kappa",
            least=-1.0,
            what="quadratic kappa is how far grades agree beyond chance, an error counting by its square: 1 is full "
            "agreement, 0 chance's",
        ),
        Measure(
            "mae",
            "mean error in grades",
            most=1e5,
            better="lower",
            what="mean error in grades is by how many grades a prediction is off on average: less is better",
        ),
        Measure("accuracy", "accuracy", what="accuracy is the share of test cases whose grade is predicted exactly"),
        Measure("balanced_accuracy", "balanced accuracy", what="balanced accuracy gives every grade the same weight"),
        *FURTHER,
    )
    schema = Measures
    for_one_sided = ""  # kappa is what is above chance

    def pooled(self, predictions: list[Predictions]) -> dict[str, Any]:
        """Of all samples together."""
        probabilities, labels = joined(predictions)
        if not len(labels):
            return {"n": 0, **dict.fromkeys(self.selecting)}
        grades, classes = _grades(probabilities, labels), probabilities.shape[1]
        return {
            "n": len(labels),
            "kappa": quadratic_kappa(grades, labels, classes),
            "mae": float(np.abs(grades - labels).mean()),
            **shares(probabilities, labels, np.ones(classes, dtype=bool)),
        }

    def figures(self, predictions: Predictions, of: Cases = UNKNOWN) -> dict[str, Any]:
        """See :class:`~medpfl.tasks.task.Task`; none of these has an interval."""
        return self.pooled([predictions])

    def told(self, predictions: Predictions, enough: Enough) -> dict[str, Any] | None:
        """Kappa, whose errors count by their square, and the mean error where :func:`no_grade_rules`; balanced accuracy
        as in a classification.
        """
        probabilities, labels = predictions
        if not enough.patients(len(labels)):
            return None
        return self.pooled([predictions]) | self._withheld(labels, probabilities.shape[1], enough)

    def gain_told(
        self, new: Predictions, old: Predictions, enough: Enough
    ) -> dict[str, dict[str, float] | None] | None:
        """As :meth:`told`."""
        if not enough.patients(len(new[1])):
            return None
        new, old = ((filled(p), y) for p, y in (new, old))
        return self.gained(new, old, enough.of) | self._withheld(new[1], new[0].shape[1], enough)

    @staticmethod
    def _withheld(labels: np.ndarray, classes: int, enough: Enough) -> dict[str, None]:
        told = {
            "kappa": no_grade_rules(labels, classes, enough),
            "mae": no_grade_rules(labels, classes, enough, power=1),
            "balanced_accuracy": counting(labels, classes, enough).all(),
        }
        return {name: None for name, may in told.items() if not may}

    def gained(self, new: Predictions, old: Predictions, of: Cases = UNKNOWN) -> dict[str, dict[str, float] | None]:
        """Kappa's interval is a bootstrap's over patients; the mean error's is Student's of paired differences.

        Draws of one grade alone, of which kappa is not known, tell no difference: were they left out, the one case of a
        rare grade would be in all others, and decide. None where all draws differ alike, but not by 0.
        """
        (labels, classes), grades = (new[1], new[0].shape[1]), [_grades(p[0], p[1]) for p in (new, old)]
        error = np.abs(grades[1] - labels) - np.abs(grades[0] - labels)

        def kappa(rows: np.ndarray) -> float | None:
            one, two = (quadratic_kappa(g[rows], labels[rows], classes) for g in grades)
            return None if one is None or two is None else one - two

        difference = kappa(np.arange(len(labels)))
        ends = None if difference is None else bootstrap_interval(lambda r: kappa(r) or 0.0, len(labels), of.whose)
        if ends and difference and ends[1] - ends[0] <= ALIKE:
            ends = None
        return {
            "kappa": ends and {"difference": difference, "low": ends[0], "high": ends[1]},
            "mae": mean_gain(error, of.whose),
            **share_differences(correct(*new), correct(*old), labels, of.whose),
        }


def quadratic_kappa(grades: np.ndarray, labels: np.ndarray, classes: int) -> float | None:
    """Cohen's kappa with quadratic weights (Psychological Bulletin 70, 1968); None where there is but one grade.

    Args:
        grades: (n,), predicted.
        labels: (n,), true.
        classes: how many grades there are.
    """
    # In whole numbers: rounding takes none below -1, and makes no number of the 0 of one grade throughout.
    table = np.bincount(labels * classes + grades, minlength=classes**2).reshape(classes, classes)
    weights = np.square(np.subtract.outer(np.arange(classes), np.arange(classes)))
    by_chance = int((weights * np.outer(table.sum(1), table.sum(0))).sum())
    found = int((weights * table).sum()) * len(labels)
    return None if by_chance == 0 else 1 - found / by_chance


def no_grade_rules(labels: np.ndarray, classes: int, enough: Enough, power: int = 2) -> bool:
    """Whether no patient has more of the error than one of enough equals, whichever one grade is predicted.

    Args:
        labels: (n,) grades.
        classes: number of them.
        enough: says how many are.
        power: of the error: 2 for its square.
    """
    errors = (np.abs(labels - grade).astype(float) ** power for grade in range(classes))
    return all(enough.share(error) for error in errors)


def _grades(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The most probable; where no probability is finite, the grade farthest from the true one."""
    classes = probabilities.shape[1]
    worst = np.where(labels >= classes / 2, 0, classes - 1)
    return np.where(np.isfinite(probabilities).all(1), probabilities.argmax(1), worst)
