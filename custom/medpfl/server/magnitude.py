"""Updates far larger than the others of their round: no site may carry the mix away with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

import torch

from medpfl.config import RunConfig
from medpfl.messages import Failure, Message, Update
from medpfl.parameters import State, distance

LEAST = 3
"""Updates below which there is no majority to measure one by."""


def check_magnitudes(
    config: RunConfig, sent: Mapping[str, Message], updates: Sequence[Update]
) -> tuple[list[Update], list[Failure]]:
    """Refuses or scales back updates that moved more than ``large_factor`` times as far as the others.

    An update is measured by the median of the **other** updates' distances, so a large one does not raise its own
    limit. Where the median is 0 (nothing is shared, or nobody moved) there is no limit.

    Args:
        config: ``large_updates`` says what to do, ``large_factor`` from when on.
        sent: every site's message.
        updates: answers to training messages, well formed and finite.

    Returns:
        The updates to use, in the same order, and what was done to whom. Of updates that are scaled back the tensors
        are replaced one by one.
    """
    if config.large_updates == "accept" or len(updates) < LEAST:
        return list(updates), []
    distances = [distance(sent[u.site].shared, u.tensors) for u in updates]
    used: list[Update] = []
    told: list[Failure] = []
    for i, update in enumerate(updates):
        usual = median(distances[:i] + distances[i + 1 :])
        limit = config.large_factor * usual
        if not usual or distances[i] <= limit:
            used.append(update)
            continue
        size = f"its update is {distances[i] / usual:.3g} times as far from what it was sent as the others' (median)"
        if config.large_updates == "clip" and isfinite(distances[i]):
            _scale_back(sent[update.site].shared, update.tensors, limit / distances[i])
            used.append(update)
            told.append(
                Failure(update.site, update.round, f"{size}; it was scaled back to {config.large_factor:g} times")
            )
        else:
            told.append(Failure(update.site, update.round, f"{size}; {config.large_factor:g} times is the limit"))
    return used, told


def _scale_back(sent: State, returned: State, share: float) -> None:
    for name, tensor in sent.items():
        returned[name] = torch.lerp(tensor.to(returned[name].dtype), returned[name], share)
