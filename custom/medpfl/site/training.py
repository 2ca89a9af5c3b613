"""Local training: E epochs of SGD on the site's objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from medpfl.algorithms.base import Value
from medpfl.models import logits
from medpfl.models.layers import batch_norm_layers
from medpfl.site.data import SiteData

Penalty = Callable[[], Tensor]


class TrainingDiverged(RuntimeError):
    """Local training left the finite numbers; the round's result is not used."""


def train_epochs(
    model: nn.Module,
    data: SiteData,
    settings: Mapping[str, Value],
    epochs: int,
    generator: torch.Generator,
    penalty: Penalty | None = None,
) -> float:
    """Trains the model in place with SGD on cross-entropy plus an optional penalty; the optimizer starts afresh.

    Args:
        model: on the data's device.
        data: the site's data; its training part must not be empty.
        settings: ``lr``, ``batch_size``, ``momentum``, ``weight_decay``.
        epochs: passes over the training data.
        generator: the order of the samples.
        penalty: added to every step's loss.

    Returns:
        Mean training loss per sample over all epochs, without the penalty.

    Raises:
        TrainingDiverged: the loss became NaN or infinite.
    """
    model.train()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad],
        lr=settings["lr"],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        foreach=True,
    )
    batch_norm = tuple(batch_norm_layers(model).values())
    # Summed on the device: reading the loss at every step would make the device wait.
    total, count = 0.0, 0
    for _ in range(epochs):
        for x, y in data.training_batches(settings["batch_size"], generator):
            for layer in batch_norm if len(y) == 1 else ():
                layer.eval()  # a single image has no batch statistics: the running ones serve
            optimizer.zero_grad()
            loss = cross_entropy(logits(model(x)), y)
            (loss if penalty is None else loss + penalty()).backward()
            optimizer.step()
            if len(y) == 1:
                model.train()
            total = total + loss.detach().double() * len(y)
            count += len(y)
    mean = float(total) / max(count, 1)
    if not math.isfinite(mean):
        raise TrainingDiverged(
            f"the training loss became {mean}: lower the learning rate (lr={settings['lr']}) or check the data"
        )
    return mean
