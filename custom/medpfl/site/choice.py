"""How much weight a site gives to another model beside the one that it trained alone, from its validation cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

Rule = Literal["received", "best", "blend"]
GRID = np.linspace(0, 1, 21)
"""Weights that are looked at."""


def chosen(rule: Rule, losses: Callable[[float], np.ndarray]) -> float:
    """The weight of the other model, from 0 (alone) to 1.

    Args:
        rule: ``best`` gives 0 or 1; ``blend`` anything between.
        losses: from a weight to the loss of every validation case, (n,), under the blend of that weight.
    """
    if rule == "best":
        return float(supported(losses(0.0) - losses(1.0)))
    return posterior_mean(np.array([losses(w).sum() for w in GRID]))


def supported(gains: np.ndarray) -> bool:
    return bool(gains.mean() > 0)


def posterior_mean(total: np.ndarray) -> float:
    prior = 2 * (1 - GRID)
    density = prior * np.exp(total.min() - total)
    return float((density * GRID).sum() / density.sum())
