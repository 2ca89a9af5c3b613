"""A model's predictions on a part of a site's data, and the measures on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from medpfl.models import logits
from medpfl.site.data import Part, SiteData
from medpfl.site.measures import measures

_BATCH = 256


def predict(model: nn.Module, data: SiteData, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities (n, classes) float64 and labels (n,) of a part, with the model in eval mode."""
    was_training = model.training
    model.eval()
    probabilities, labels = [], []
    with torch.inference_mode():
        for x, y in data.batches(part, _BATCH):
            probabilities.append(logits(model(x)).double().softmax(1).cpu())
            labels.append(y.cpu())
    model.train(was_training)
    return torch.cat(probabilities).numpy(), torch.cat(labels).numpy()


def evaluate(model: nn.Module, data: SiteData, part: Part) -> dict[str, Any] | None:
    """:func:`medpfl.site.measures.measures` of the model on a part; None if the site has no such samples."""
    if not data.samples(part):
        return None
    return measures(*predict(model, data, part))
