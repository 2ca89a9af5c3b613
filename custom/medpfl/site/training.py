"""Local training: E epochs of SGD on the site's objective."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from medpfl.algorithms.base import Value
from medpfl.models.layers import batch_norm_layers
from medpfl.site.data import SiteData
from medpfl.site.objectives import Objective, cross_entropy_objective


class TrainingDiverged(RuntimeError):
    """Local training left the finite numbers; the round's result is not used."""


def train_epochs(
    model: nn.Module,
    data: SiteData,
    settings: Mapping[str, Value],
    epochs: int,
    generator: torch.Generator,
    objective: Objective | None = None,
) -> float:
    """Trains the model in place with SGD; the optimizer starts afresh.

    Args:
        model: on the data's device.
        data: the site's data; its training part must not be empty.
        settings: ``lr``, ``batch_size``, ``momentum``, ``nesterov``, ``weight_decay``.
        epochs: passes over the training data.
        generator: the order of the samples.
        objective: what every step minimises; cross-entropy by default.

    Returns:
        Mean cross-entropy per sample over all epochs, without what the objective adds to it.

    Raises:
        TrainingDiverged: the loss became NaN or infinite.
    """
    objective = objective or cross_entropy_objective(model)
    model.train()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad],
        lr=settings["lr"],
        momentum=settings["momentum"],
        nesterov=bool(settings["nesterov"]),
        weight_decay=settings["weight_decay"],
        foreach=True,
    )
    batch_norm = tuple(batch_norm_layers(model).values())
    # Summed on the device: reading the loss at every step would make the device wait.
    total, count = 0.0, 0
    for _ in range(epochs):
        for x, y in data.training_batches(settings["batch_size"], generator):
            alone = len(y) * data.images_per_sample == 1
            for layer in batch_norm if alone else ():
                layer.eval()  # a single image has no batch statistics: the running ones serve
            optimizer.zero_grad()
            loss, minimised = objective(x, y)
            minimised.backward()
            optimizer.step()
            if alone:
                model.train()
            total = total + loss.detach().double() * len(y)
            count += len(y)
    mean = float(total) / max(count, 1)
    if not math.isfinite(mean):
        raise TrainingDiverged(
            f"the training loss became {mean}: lower the learning rate (lr={settings['lr']}) or check the data"
        )
    return mean
