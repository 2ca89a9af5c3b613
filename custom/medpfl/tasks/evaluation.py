"""A classifier's predictions on a part of a site's data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.core.layers import evaluating
from medpfl.core.site_data import Part, SiteData, looked_at_once
from medpfl.core.stopping import stop_if_asked
from medpfl.models import logits

Predictions = tuple[np.ndarray, np.ndarray]
"""Probabilities (n, classes) float64, and labels (n,) or (n, classes)."""


def softmax(scores: Tensor) -> Tensor:
    """Of logits (B, classes), of which one is right."""
    return scores.softmax(1)


def predict(
    model: nn.Module, data: SiteData, part: Part, probabilities_of: Callable[[Tensor], Tensor] = softmax
) -> Predictions:
    """Probabilities and labels of a part, with the model in eval mode.

    A patient of several samples is one row: the mean of their probabilities.

    Args:
        model: its output is logits (B, classes).
        data: the site's.
        part: of it.
        probabilities_of: of logits in float64.
    """
    probabilities, labels = [], []
    with evaluating(model), torch.inference_mode():
        for x, y in data.batches(part, looked_at_once(data)):
            stop_if_asked()
            probabilities.append(probabilities_of(logits(model(x)).double()).cpu())
            labels.append(y.cpu())
    scores, classes = torch.cat(probabilities), torch.cat(labels)
    if (bags := data.bags(part)) is not None:
        scores, classes = _by_patient(scores, classes, bags.cpu())
    return scores.numpy(), classes.numpy()


class Cases(NamedTuple):
    """What the rows of predictions are.

    Attributes:
        by: what intervals are over: patients where they are known and more than one; else samples.
        whose: (n,) the number of the patient that each row is of; None where each is of its own.
    """

    by: Literal["patient", "sample"] = "sample"
    whose: np.ndarray | None = None


UNKNOWN = Cases()
"""Each sample stands for itself."""


def cases(data: SiteData, part: Part) -> Cases:
    """Of the predictions of a part, in their order."""
    owners, bags = data.owners(part), data.bags(part)
    if owners is None and bags is None:
        return UNKNOWN
    whose = bags if owners is None else owners
    if bags is not None:
        whose = torch.zeros(int(bags.max()) + 1, dtype=whose.dtype, device=whose.device).index_copy_(0, bags, whose)
    found = whose.cpu().numpy()
    people = len(np.unique(found))
    return Cases("sample" if people == 1 < len(found) else "patient", found if people < len(found) else None)


def joined(predictions: Sequence[Predictions]) -> Predictions:
    """Of several sites, one after another."""
    probabilities, labels = map(np.concatenate, zip(*predictions, strict=True))
    return probabilities, labels


def cases_of_all(sites: Sequence[Cases], numbers: Sequence[int]) -> Cases:
    """Of :func:`joined` predictions: a patient of one site is nobody at another.

    Args:
        sites: of each.
        numbers: how many cases each has.
    """
    # Several cases of one patient are a site's own "samples", and one patient among all.
    by_patient = all(one.by == "patient" or one.whose is not None for one in sites)
    if all(one.whose is None for one in sites):
        return Cases("patient" if by_patient else "sample")
    each = [np.arange(n) if one.whose is None else one.whose for one, n in zip(sites, numbers, strict=True)]
    people = [np.unique(whose, return_inverse=True)[1] for whose in each]
    first = np.cumsum([0, *(int(number.max(initial=-1)) + 1 for number in people[:-1])])
    whose = np.concatenate([number + start for number, start in zip(people, first, strict=True)])
    return Cases("patient" if by_patient and len(np.unique(whose)) > 1 else "sample", whose)


def patients(data: SiteData) -> dict[Part, int]:
    """Of how many patients the rows of predictions are, by part, where they are known and fewer than the rows."""
    judged: tuple[Part, ...] = ("validation", "test")
    found = {part: cases(data, part).whose for part in judged if data.samples(part)}
    return {part: len(np.unique(whose)) for part, whose in found.items() if whose is not None}


def _by_patient(scores: Tensor, labels: Tensor, bags: Tensor) -> tuple[Tensor, Tensor]:
    number = int(bags.max()) + 1
    counts = torch.bincount(bags, minlength=number)[:, None]
    means = torch.zeros(number, scores.shape[1], dtype=scores.dtype).index_add_(0, bags, scores) / counts
    return means, torch.zeros(number, *labels.shape[1:], dtype=labels.dtype).index_copy_(0, bags, labels)


def mixed(first: Predictions, second: Predictions, weight: float) -> Predictions:
    """Of probabilities; between 0 and 1 a case for which one of the two has none is the other's alone."""
    if weight in (0, 1):
        return (first, second)[int(weight)]
    one, two = (np.isfinite(p).all(1, keepdims=True) for p, _ in (first, second))
    both = (1 - weight) * first[0] + weight * second[0]
    return np.where(one & two, both, np.where(two, second[0], first[0])), first[1]
