"""How much a site relies on another model beside the one that it trained alone, from its few validation cases.

``blend`` gives the other model the weight w in p = (1 - w) p_alone + w p_other that is the mean of its posterior, with
the probabilities of the labels as the likelihood: a universal portfolio of two (Cover, Mathematical Finance 1, 1991).
The prior is Beta(1 + h, 1 + (1 - h) / 2) with h = 300 / (300 + N) for N training cases, of which those of few classes
count for more (:func:`medpfl.site.candidates.training_cases`): its mean falls from 2/3, where a site has next to none
of its own and the federation's are most of what there is to learn from, to 0.4, where it has thousands. A blend that
costs the cases together more than :data:`_BIT` above training alone is not used, nor is any where no case tells the two
models apart, nor one of less than :data:`_LITTLE` of the other model, which would take a second network for nothing.
Of n cases taken one after another the loss is above that of training alone by log((n + 1)(n + 2) / 2) at most, and by
log(1 + 2n / 3) where N is large, whatever the other model is, where a probability is linear in w.

``share_of_further`` says how far a model goes towards what further training made of it: the posterior mean over the
line between both, whose points are networks with averaged weights (Wortsman et al.: Robust fine-tuning of zero-shot
models. CVPR 2022, who fix the share). Averaged weights of two good networks can make a bad one. So where the network
there is worse on the validation cases than the line's best point by more than such a mean may be, or by as much worse
than both ends on the cases that it was trained on, of which there are more, it is the best point that is not.

``best`` takes the other model only if the cases support it: a sign-flip test (Fisher, 1935) of the paired losses at the
one-sided level :data:`LEVEL`, divided by the number of models of which the other is the best on these cases. Where none
of them is better (differences symmetric about 0, or worse), one is taken with that probability at most, however few the
cases.

A case is what is independent: a patient, where it is known whose samples are, with the mean loss over all of them
(:func:`medpfl.site.candidates.evidence`). Thirty slices of one patient tell of one patient.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betainc

from medpfl.core.gain import Use

LEVEL = 0.05
"""Of the test."""
_FEW = 300
"""Training cases at which h is a half."""
_SAME = 1e-9
"""Losses that differ by less tell nothing."""
_FLIPS, _AT_ONCE = 4999, 10**7
"""Of the test's signs: how often all are drawn, and how many numbers are held at a time."""
_WEIGHTS, _SHARES = np.linspace(0, 1, 101), np.linspace(0, 1, 5)
"""At which the posteriors are computed."""
_BIT = float(np.log(2))
"""Nats by which a blend may cost its cases more than training alone does. Less would leave out many a blend that few
cases speak against by chance; more lets in models that are worse and sure of themselves."""
_LITTLE = 0.005
"""A weight that two digits say is none."""
_MORE = np.log(len(_SHARES))
"""Nats by which a mean over these shares may cost more than the best of them, if the loss is convex along the line."""


def chosen(
    rule: Use,
    losses: Callable[[float], np.ndarray],
    train: float,
    others: int = 1,
) -> float:
    """The weight of the other model, from 0 (alone) to 1.

    Args:
        rule: ``received`` gives 1, ``best`` 0 or 1, ``blend`` anything between.
        losses: from a weight to the loss of every validation case, (n,), under the blend of that weight.
        train: N, the number of training cases, as those of few classes count.
        others: of how many models the other is the best on the same cases: ``best`` divides its level by it.
    """
    if rule == "received":
        return 1.0
    if rule == "best":
        return float(supported(losses(0.0) - losses(1.0), LEVEL / others))
    total = np.array([losses(weight).sum() for weight in _WEIGHTS])
    if np.ptp(total) < _SAME:
        return 0.0
    weight = posterior_mean(total, train)
    return weight if weight >= _LITTLE and losses(weight).sum() <= total[0] + _BIT else 0.0


def supported(gains: np.ndarray, level: float = LEVEL) -> bool:
    """Whether paired gains, (n,), are above 0 by the sign-flip test at a one-sided level.

    The same gains get the same answer: the signs are drawn from a fixed seed.
    """
    rng, rows, as_large = np.random.default_rng(0), max(1, _AT_ONCE // max(1, len(gains))), 0
    for start in range(0, _FLIPS, rows):
        signs = rng.choice((-1.0, 1.0), size=(min(rows, _FLIPS - start), len(gains)))
        as_large += int((signs @ gains >= gains.sum() - 1e-12).sum())
    return bool(gains.sum() > 0 and (as_large + 1) / (_FLIPS + 1) <= level)


def share_of_further(
    losses: Callable[[float], np.ndarray], training: Callable[[float], np.ndarray] | None = None
) -> float:
    """The share, from 0 (before) to 1, of further training in the averaged weights; all are as likely beforehand.

    Args:
        losses: from a share to the loss of every validation case, (n,), of the network there.
        training: the same of the training cases, which both ends were trained on; None where they cannot be had.
    """

    def in_a_valley(share: float) -> bool:
        if training is None or share in (0, 1):
            return True
        limit = training(share).sum() - _MORE
        return any(limit <= training(end).sum() for end in (0.0, 1.0))

    total = np.array([losses(share).sum() for share in _SHARES])
    share = _mean(_SHARES, total, np.ones_like(_SHARES))
    if losses(share).sum() <= total.min() + _MORE and in_a_valley(share):
        return share
    return next(share for share in _SHARES[total.argsort(kind="stable")].tolist() if in_a_valley(share))


def posterior_mean(total: np.ndarray, train: float) -> float:
    """The mean of the weight.

    Args:
        total: the summed negative log probability of the labels at weights from 0 to 1 in K equal steps, (K + 1,). Each
            has the prior of what lies nearest to it.
        train: N, the number of training cases.
    """
    few, weights = _FEW / (_FEW + train), np.linspace(0, 1, len(total))
    edges = np.concatenate([[0], (weights[1:] + weights[:-1]) / 2, [1]])
    return _mean(weights, total, np.diff(betainc(1 + few, 1 + (1 - few) / 2, edges)))


def _mean(of: np.ndarray, total: np.ndarray, prior: np.ndarray) -> float:
    density = prior * np.exp(total.min() - total)
    return float(density @ of / density.sum())
