"""Differential privacy of what sites send: calibration of the noise, and the account of a run in words.

Two guarantees, which do not add up to one of the run: one patient of a site replaced by another, or all data of the
site replaced by any others. Neither covers numbers of samples, losses and measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, exp, sqrt
from typing import Any

from medpfl.core.errors import UserError

DELTA = 1e-5
"""delta for which the epsilon of the updates is given."""

SENSITIVITY = 2.0
"""In units of the bound: how far replacing one clipped vector by another moves a sum."""


@lru_cache
def noise_multiplier(epsilon: float, delta: float) -> float:
    """The least standard deviation, at sensitivity 1, of Gaussian noise that is (epsilon, delta)-private.

    The analytic Gaussian mechanism (Balle and Wang, Improving the Gaussian mechanism for differential privacy, ICML
    2018, theorem 8), rounded up in the tenth digit.

    Args:
        epsilon: > 0.
        delta: in (0, 1).
    """
    from scipy.optimize import brentq

    low, high = 1e-6, 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
    found = brentq(lambda scale: gaussian_delta(epsilon, scale) - delta, low, high, xtol=1e-15, rtol=1e-12)
    return found * (1 + 1e-10)


def gaussian_delta(epsilon: float, scale: float) -> float:
    """delta of Gaussian noise of this standard deviation at sensitivity 1 (Balle and Wang, theorem 8, exact)."""
    from scipy.special import log_ndtr

    half, shift = 1 / (2 * scale), epsilon * scale
    log_second = epsilon + log_ndtr(-half - shift)
    return exp(log_ndtr(half - shift)) - exp(log_second)


def least_patients(epsilon: float, delta: float, clip: float, entries: int) -> int:
    """Patients below which the noise in an entry of their mean is above f's own spread: distances say nothing then."""
    return ceil(noise_multiplier(epsilon, delta) * SENSITIVITY * clip * sqrt(entries))


@lru_cache
def epsilon_of_updates(noise: float, rounds: int) -> float:
    """epsilon of a site's updates of all rounds at :data:`DELTA`, by Opacus' accountant of Rényi differential privacy.

    Every site takes part in every round, so there is no amplification by sampling.

    Args:
        noise: ``update_noise``; one data set in place of another moves a clipped update by up to twice its bound.
        rounds: updates that leave.

    Raises:
        UserError: Opacus is not installed.
    """
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise UserError(
            "update_noise is accounted for by Opacus, which is not installed here: pip install 'medpfl[privacy]'"
        ) from None
    import numpy as np

    accountant = RDPAccountant()
    accountant.history = [(noise / SENSITIVITY, 1.0, rounds)]
    # From below the default's orders, for little noise, to far above them, for much.
    found = accountant.get_epsilon(DELTA, alphas=(1 + np.geomspace(1e-4, 1e6, 2000)).tolist())
    return max(0.0, float(found))  # of very much noise the conversion from Renyi's orders says less than nothing


def in_words(privacy: Mapping[str, Any]) -> list[str]:
    """Sentences for a run's notes.

    Args:
        privacy: by what it covers: the account of each.
    """
    names = {"statistics": "The statistics for W", "updates": "The updates of all rounds"}
    notes = [
        f"{names[part]} are differentially private, epsilon {said['epsilon']:.3g} at delta {said['delta']:.0e}, for "
        f"{said['neighbours']}."
        for part, said in privacy.items()
    ]
    return [
        *notes,
        "That covers no numbers of samples, losses and measures, nor what leaves a site beside it, and it holds only "
        "where the noise comes from a secret of the site: in a simulation it comes from the run's seed, for the same "
        "figures each time.",
    ]
