"""A model's predictions on a part of a site's data, and the measures on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.core.site_data import Part, SiteData
from medpfl.models import logits
from medpfl.tasks.measures import measures

_IMAGES = 256
"""Images in a batch; a bag counts as many as it has."""


def predict(model: nn.Module, data: SiteData, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities (n, classes) float64 and labels (n,) of a part, with the model in eval mode.

    A patient of several samples is one row: the mean of their probabilities.
    """
    was_training = model.training
    model.eval()
    probabilities, labels = [], []
    with torch.inference_mode():
        for x, y in data.batches(part, max(1, _IMAGES // data.images_per_sample)):
            probabilities.append(logits(model(x)).double().softmax(1).cpu())
            labels.append(y.cpu())
    model.train(was_training)
    scores, classes = torch.cat(probabilities), torch.cat(labels)
    if (bags := data.bags(part)) is not None:
        scores, classes = _by_patient(scores, classes, bags.cpu())
    return scores.numpy(), classes.numpy()


def _by_patient(scores: Tensor, labels: Tensor, bags: Tensor) -> tuple[Tensor, Tensor]:
    number = int(bags.max()) + 1
    counts = torch.bincount(bags, minlength=number)[:, None]
    means = torch.zeros(number, scores.shape[1], dtype=scores.dtype).index_add_(0, bags, scores) / counts
    return means, torch.zeros(number, dtype=labels.dtype).index_copy_(0, bags, labels)


def evaluate(model: nn.Module, data: SiteData, part: Part) -> dict[str, Any] | None:
    """:func:`medpfl.tasks.measures.measures` of the model on a part; None if the site has no such samples."""
    if not data.samples(part):
        return None
    return measures(*predict(model, data, part))
