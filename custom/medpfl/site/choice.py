"""How much a site relies on another model beside the one that it trained alone, from its few validation cases.

``blend`` gives the other model the weight w in p = (1 - w) p_alone + w p_other that is the mean of its posterior, with
the probabilities of the labels as the likelihood: a universal portfolio of two (Cover, Mathematical Finance 1, 1991).
The prior is Beta(1 + f, 1 + (1 - f) / 2) with f = 300 / (300 + N) for N training cases: its mean falls from 2/3, where
a site has next to none of its own and the federation's are most of what there is to learn from, to 0.4, where it has
thousands. With it the loss over n cases, taken one after another, is above that of training alone by
log((n + 1)(n + 2) / 2) at most, and by log(1 + 2n / 3) where N is large, whatever the other model is. Without cases the
site uses its own model.

``share_of_further`` says how far a model goes towards what further training made of it: the posterior mean over the
line between both, whose points are networks with averaged weights (Wortsman et al.: Robust fine-tuning of zero-shot
models. CVPR 2022, who fix the share).

``best`` takes the other model only if the cases support it: a sign-flip test (Fisher, 1935) of the paired losses at the
one-sided level :data:`LEVEL`, divided by the number of models of which the other is the best on these cases. Where none
of them is better (differences symmetric about 0, or worse), one is taken with that probability at most, whatever n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.special import betainc

Rule = Literal["received", "best", "blend"]
LEVEL = 0.05
"""Of the test."""
_FEW = 300
"""Training cases at which f is a half."""
_FLIPS = 4999
_WEIGHTS = (np.arange(100) + 0.5) / 100
_SHARES = np.linspace(0, 1, 5)
"""At which the posteriors are computed: weights in the middle of equal cells."""


def chosen(rule: Rule, losses: Callable[[float], np.ndarray], train: float, others: int = 1) -> float:
    """The weight of the other model, from 0 (alone) to 1.

    Args:
        rule: ``received`` gives 1, ``best`` 0 or 1, ``blend`` anything between.
        losses: from a weight to the loss of every validation case, (n,), under the blend of that weight.
        train: N, the number of training cases.
        others: of how many models the other is the best on the same cases: ``best`` divides its level by it.
    """
    if rule == "received":
        return 1.0
    alone = losses(0.0)
    if not len(alone):
        return 0.0
    if rule == "best":
        return float(supported(alone - losses(1.0), LEVEL / others))
    return posterior_mean(np.array([losses(w).sum() for w in _WEIGHTS]), train)


def supported(gains: np.ndarray, level: float = LEVEL) -> bool:
    """Whether paired gains, (n,), are above 0 by the sign-flip test at a one-sided level.

    The same gains get the same answer: the signs are drawn from a fixed seed.
    """
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(_FLIPS, len(gains)))
    as_large = int((signs @ gains >= gains.sum() - 1e-12).sum())
    return gains.sum() > 0 and (as_large + 1) / (_FLIPS + 1) <= level


def share_of_further(losses: Callable[[float], np.ndarray]) -> float:
    """The share, from 0 (before) to 1, of further training in the averaged weights; all are as likely beforehand.

    Args:
        losses: from a share to the loss of every validation case, (n,), of the network there.
    """
    return _mean(_SHARES, np.array([losses(share).sum() for share in _SHARES]), np.ones_like(_SHARES))


def posterior_mean(total: np.ndarray, train: float) -> float:
    """The mean of the weight.

    Args:
        total: the summed negative log probability of the labels at weights in the middle of K equal cells, (K,).
        train: N, the number of training cases.
    """
    few, edges = _FEW / (_FEW + train), np.linspace(0, 1, len(total) + 1)
    return _mean((edges[1:] + edges[:-1]) / 2, total, np.diff(betainc(1 + few, 1 + (1 - few) / 2, edges)))


def _mean(of: np.ndarray, total: np.ndarray, prior: np.ndarray) -> float:
    density = prior * np.exp(total.min() - total)
    return float(density @ of / density.sum())
