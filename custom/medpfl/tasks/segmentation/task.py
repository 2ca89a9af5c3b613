"""Segmentation: pictures, slices or volumes with a mask of one or several classes beside the background, 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from torch import Tensor, nn

from medpfl.core.measure import Measure
from medpfl.core.site_data import Part, SiteData
from medpfl.tasks.evaluation import UNKNOWN, Cases
from medpfl.tasks.intervals import ALIKE, mean_gain, mean_interval
from medpfl.tasks.segmentation.judging import Judged, at_once, judge
from medpfl.tasks.segmentation.outlines import outlined
from medpfl.tasks.task import Task
from medpfl.tasks.told import Enough

_LEAST_DICE = 0.05
"""A case that a model misses must not decide alone: it costs as much as this Dice."""
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
_Length = Annotated[FiniteFloat, Field(ge=0, le=1e6)]


class Measures(BaseModel):
    """Of one model on one part of a site's data; means over cases, of a case over its structures."""

    model_config = ConfigDict(extra="forbid")

    n: Annotated[int, Field(ge=0, le=10**9)]
    dice: _Share | None
    dice_ci95: Annotated[list[_Share], Field(min_length=2, max_length=2)] | None
    dice_ci95_by: Literal["patient", "sample"] | None = None
    dice_by_class: Annotated[list[_Share | None], Field(max_length=1000)]
    hd95: _Length | None
    volume_error: _Share | None


class Segmentation(Task):
    """Dice and cross-entropy (MONAI's DiceCELoss) of logits (B, classes, ...) and masks (B, ...).

    Measures are those of a case, a patient's slices together or a volume, averaged over its structures and then over
    cases. A case without a structure says nothing of it: Dice, distance and volume error are undefined there, as in
    MONAI's metrics, and left out.
    """

    name = "segmentation"
    measures = (
        Measure(
            "dice",
            "Dice",
            interval="dice_ci95",
            what="Dice is twice the overlap of the predicted and the true mask over the sum of their sizes: 1 where "
            "they are the same, 0 where they do not touch",
        ),
        Measure(
            "hd95",
            "HD95",
            most=float("inf"),
            better="lower",
            unit="mm",
            selects=False,
            what="HD95 is the distance between the surfaces of both masks, in mm, that 95 % of their points do not "
            "exceed: less is better",
        ),
        Measure(
            "volume_error",
            "volume error",
            better="lower",
            what="volume error is the difference of the predicted and the true volume over their sum: less is better",
        ),
    )
    schema = Measures
    labels = "mask"
    network = "unet"
    loss_name = "Dice + cross-entropy"
    least_cases = 20  # its gains are means of what a single case can move far
    for_few = ""  # Dice says how much of each mask is right: it takes any value on a single case

    def misfit(self, output: Sequence[int], images: Sequence[int], classes: int) -> str | None:
        """See :class:`~medpfl.tasks.task.Task`: as many channels as classes, the background among them."""
        if len(output) != len(images) or list(output[2:]) != list(images[2:]) or output[1] != classes:
            return f"a map of {classes} classes for every pixel, the background among them, is needed"
        return None

    def looked_at_once(self, image: Sequence[int], images: int = 1) -> int:
        """See :class:`~medpfl.tasks.task.Task`: slices, or patches of a volume."""
        return max(at_once(image), super().looked_at_once(image, images))

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """The sum of both; Dice over the batch as a whole, of the structures alone."""
        return _dice_ce()(output.float(), labels[:, None])

    def predict(self, model: nn.Module, data: SiteData, part: Part) -> Judged:
        """Sums over each case; distances between surfaces for test data alone, since they take time."""
        return judge(model, data, part, surfaces=part == "test")

    def pooled(self, predictions: list[Judged]) -> dict[str, Any]:
        """Of all cases together."""
        found = Judged.together(predictions)
        by_case = _by_case(found)
        return {
            "n": len(found.true),
            **{name: _mean(values) for name, values in by_case.items()},
            "dice_ci95": _dice_interval(by_case["dice"]),
            "dice_by_class": [_mean(column) for column in found.dice.T],
        }

    def figures(self, predictions: Judged, of: Cases = UNKNOWN) -> dict[str, Any]:
        """See :class:`~medpfl.tasks.task.Task`."""
        found = self.pooled([predictions])
        if of.whose is not None:
            found["dice_ci95"] = _dice_interval(_by_case(predictions)["dice"], of.whose)
        return found | {"dice_ci95_by": of.by if found["dice_ci95"] else None}

    def never_answered(self, predictions: Judged) -> dict[int, int]:
        """See :class:`~medpfl.tasks.task.Task`: structures of which no voxel is marked in any case."""
        cases, marked = (predictions.true > 0).sum(0), predictions.predicted.any(0)
        return {number: int(n) for number, n in enumerate(cases, start=1) if n and not marked[number - 1]}

    def losses(self, predictions: Judged) -> np.ndarray:
        """Minus log of a case's mean soft Dice, at least :data:`_LEAST_DICE`; 0 for a case without any structure."""
        return _losses(predictions.overlap, predictions.expected, predictions.true)

    def mixed_losses(self, first: Judged, second: Judged, weight: float) -> np.ndarray:
        """Exact where windows do not overlap: sums of mixed probabilities are the mixed sums."""
        overlap = (1 - weight) * first.overlap + weight * second.overlap
        return _losses(overlap, (1 - weight) * first.expected + weight * second.expected, first.true)

    def mixed(self, first: Judged, second: Judged, weight: float) -> Judged | None:
        """Known for one of the two alone: no voxel is kept."""
        return {0: first, 1: second}.get(weight)

    def gained(self, new: Judged, old: Judged, of: Cases = UNKNOWN) -> dict[str, dict[str, float] | None]:
        """Means of paired differences with Student's interval."""
        one, two = _by_case(new), _by_case(old)
        return {
            m.name: _gain(one[m.name] - two[m.name], 1 if m.better == "higher" else -1, of.whose) for m in self.measures
        }

    def told(self, predictions: Judged, enough: Enough) -> dict[str, Any] | None:
        """Of the structures that enough patients have; distances of those of which enough have a known one."""
        return self.figures(_of(predictions, enough), enough.of) if enough.patients(len(predictions.true)) else None

    def gain_told(self, new: Judged, old: Judged, enough: Enough) -> dict[str, dict[str, float] | None] | None:
        """As :meth:`told`."""
        if not enough.patients(len(new.true)):
            return None
        return self.gained(_of(new, enough), _of(old, enough), enough.of)

    def detail(self, test: Judged, model: nn.Module, data: SiteData) -> dict[str, Any]:
        """``cases``: each one's measures; ``pictures``: :func:`medpfl.tasks.segmentation.outlines.outlined`."""
        values = _by_case(test)
        rows = zip(*(np.where(np.isfinite(v), v, None).tolist() for v in values.values()), strict=True)
        pictures = outlined(model, data, values["dice"])
        return {"cases": [dict(zip(values, row, strict=True)) for row in rows], "pictures": pictures}


def _of(found: Judged, enough: Enough) -> Judged:
    """Without structures that too few patients have, as if no case had them."""
    there = found.true > 0
    true = np.where(enough(there), found.true, 0)
    measured = np.isfinite(found.surface) & (true > 0)
    return replace(found, true=true, surface=np.where(enough(measured), found.surface, np.nan))


def _by_case(found: Judged) -> dict[str, np.ndarray]:
    """Each case's measures, (n,), means over its structures; NaN where it has none."""
    return {
        "dice": _mean_of_rows(found.dice),
        "hd95": _mean_of_rows(found.surface),
        "volume_error": _mean_of_rows(found.volume_error),
    }


def _dice_interval(dice: np.ndarray, whose: np.ndarray | None = None) -> list[float] | None:
    there = np.isfinite(dice)
    ends = mean_interval(dice[there], None if whose is None else whose[there])
    if ends is None or ends[1] - ends[0] <= ALIKE:  # of three masks that are all missed nobody knows how the next is
        return None
    return [max(0.0, ends[0]), min(1.0, ends[1])]


def _mean_of_rows(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(1) / np.where(known.any(1), known.sum(1), np.nan)


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _gain(differences: np.ndarray, sign: int, whose: np.ndarray | None) -> dict[str, float] | None:
    there = np.isfinite(differences)
    return mean_gain(sign * differences[there], None if whose is None else whose[there])


def _losses(overlap: np.ndarray, expected: np.ndarray, true: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        dice = np.where(true > 0, 2 * overlap / (expected + true), np.nan)
    return np.nan_to_num(-np.log(np.clip(_mean_of_rows(dice), _LEAST_DICE, 1)))


@cache
def _dice_ce() -> nn.Module:
    from monai.losses import DiceCELoss  # Importing MONAI takes seconds, so only who asks for it waits.

    return DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, batch=True)
