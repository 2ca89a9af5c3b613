"""How much a site relies on another model beside the one that it trained alone, from its few validation cases.

``blend`` gives the other model the weight w in p = (1 - w) p_alone + w p_other that is the mean of its posterior, with
the probabilities of the labels as the likelihood: a universal portfolio of two (Cover, Mathematical Finance 1, 1991).
The prior density 1.5 sqrt(1 - w) leans to the own model: its mean is 0.4, and with it the loss over n cases, taken one
after another, is above that of training alone by log(1 + 2n / 3) at most, whatever the other model is. Without cases
the site uses its own model.

``best`` takes the other model only if the cases support it: a sign-flip test (Fisher, 1935) of the paired losses at the
one-sided level :data:`LEVEL`, divided by the number of models of which the other is the best on these cases. Where none
of them is better (differences symmetric about 0, or worse), one is taken with that probability at most, whatever n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

Rule = Literal["received", "best", "blend"]
LEVEL = 0.05
"""Of the test."""
_FLIPS = 4999
_WEIGHTS = np.linspace(0, 1, 101)
"""At which the posterior is computed."""


def chosen(rule: Rule, losses: Callable[[float], np.ndarray], others: int = 1) -> float:
    """The weight of the other model, from 0 (alone) to 1.

    Args:
        rule: ``received`` gives 1, ``best`` 0 or 1, ``blend`` anything between.
        losses: from a weight to the loss of every validation case, (n,), under the blend of that weight.
        others: of how many models the other is the best on the same cases: ``best`` divides its level by it.
    """
    if rule == "received":
        return 1.0
    alone = losses(0.0)
    if not len(alone):
        return 0.0
    if rule == "best":
        return float(supported(alone - losses(1.0), LEVEL / others))
    return posterior_mean(np.array([losses(w).sum() for w in _WEIGHTS]))


def supported(gains: np.ndarray, level: float = LEVEL) -> bool:
    """Whether paired gains, (n,), are above 0 by the sign-flip test at a one-sided level.

    The same gains get the same answer: the signs are drawn from a fixed seed.
    """
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(_FLIPS, len(gains)))
    as_large = int((signs @ gains >= gains.sum() - 1e-12).sum())
    return gains.sum() > 0 and (as_large + 1) / (_FLIPS + 1) <= level


def posterior_mean(total: np.ndarray) -> float:
    """The mean of the weight.

    Args:
        total: the summed negative log probability of the labels at each of evenly spaced weights from 0 to 1, (K,).
    """
    weights = np.linspace(0, 1, len(total))
    density = np.sqrt(1 - weights) * np.exp(total.min() - total)
    density[0] /= 2  # the trapezoidal rule; the last one is 0
    return float(density @ weights / density.sum())
