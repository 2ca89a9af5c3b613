"""Training of a site that joins: epochs on its own data, of which the best by its validation data is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from medpfl.config.run import RunConfig
from medpfl.core.seeding import generator, seed_global
from medpfl.core.site_data import SiteData
from medpfl.tasks.selection import seen, selection
from medpfl.training.loop import train_plainly


def adapt(
    model: nn.Module,
    data: SiteData,
    config: RunConfig,
    name: str,
    epochs: int,
    one_epoch: Callable[[torch.Generator], Any] | None = None,
) -> tuple[int, list[dict[str, Any] | None]]:
    """Trains the model in place and leaves it as it was after the epoch with the best validation measure.

    The model before training counts too. Without validation samples the last epoch's is kept, as where their measure
    is defined in no epoch.

    Args:
        model: on the data's device.
        data: the site's.
        config: training settings and ``select_by``; ``auto`` is decided by the site's own cases.
        name: of the site, for the order of its samples.
        epochs: at most; each begins with a fresh optimizer, as a round of one epoch does.
        one_epoch: trains the model for one, in that order; by default on the task's loss alone.

    Returns:
        The number of epochs that the kept model has seen, and the validation measures before and after every epoch.
    """
    learned = config.learned
    by = selection(learned, config.select_by, [seen(learned, data)])["measure"]
    told = learned.validated(model, data, by)
    found, highest = [told["validation"]], _score(told, config, by)
    best, kept = 0, deepcopy(model.state_dict())
    for epoch in range(1, epochs + 1):
        order = generator(config.seed, name, "join", epoch, "shuffle")
        if one_epoch:
            seed_global(order.initial_seed())  # as train_plainly has it
            one_epoch(order)
        else:
            train_plainly(model, data, config.trainer, 1, order, config.trainer.loss(learned.loss, data))
        told = learned.validated(model, data, by)
        found.append(told["validation"])
        score = _score(told, config, by)
        if score > highest or highest == -math.inf:
            best, kept, highest = epoch, deepcopy(model.state_dict()), score
    model.load_state_dict(kept)
    return best, found


def _score(told: Mapping[str, Any], config: RunConfig, by: str) -> float:
    value = config.learned.score(told, by)
    return -math.inf if value is None else round(value, 12)
