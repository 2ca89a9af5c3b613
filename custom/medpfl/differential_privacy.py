"""Differential privacy of what sites send: the settings, the mechanism's calibration, and the account of a run.

Two guarantees, which do not add up to one of the run. FedAP's statistics: one patient of the site replaced by another
(:mod:`medpfl.site.private_statistics`). Updates: all data of the site replaced by any others
(:mod:`medpfl.site.private_update`). Neither covers numbers of samples, losses and measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from math import ceil, exp, sqrt
from typing import Any

from medpfl.algorithms.base import Value
from medpfl.errors import UserError

OF_STATISTICS: dict[str, Value] = {"statistics_epsilon": 0.0, "statistics_delta": 1e-5, "statistics_clip": 1.0}
"""Settings where the mixing rests on statistics under f; 0 is off. ``statistics_clip`` bounds the root mean square of a
patient's vector, whose entries are standardised by f."""

OF_UPDATES: dict[str, Value] = {"update_clip": 0.0, "update_noise": 0.0}
"""Settings where a model is shared; 0 is off. The bound S of an update's L2 norm, and the noise's standard deviation in
units of S."""

DELTA = 1e-5
"""delta for which the epsilon of the updates is given."""

SENSITIVITY = 2.0
"""In units of the bound: how far replacing one clipped vector by another moves a sum."""


def misplaced(settings: Mapping[str, Value], mixing: str, all_personal: bool) -> str | None:
    """Why settings of privacy that the user gave have no meaning here, in words; None if they have.

    Args:
        settings: as given, without defaults.
        mixing: in force.
        all_personal: no model leaves the sites.
    """
    of_statistics = [name for name in OF_STATISTICS if name in settings]
    if of_statistics and mixing == "similarity-running":
        return (
            f"{of_statistics[0]}: f-FedAP's running statistics follow the training's momentum, so one patient's share "
            "of them has no bound and no noise would be enough: use fedap or d-fedap"
        )
    if of_statistics and not mixing.startswith("similarity"):
        return f"{of_statistics[0]}: mixing {mixing!r} rests on no statistics, so there is nothing to make private"
    if of_statistics and "statistics_epsilon" not in settings:
        return f"{of_statistics[0]} without statistics_epsilon changes nothing: give it too, e.g. statistics_epsilon=3"
    of_updates = [name for name in OF_UPDATES if name in settings]
    if of_updates and all_personal:
        return f"{of_updates[0]}: with everything personal no update leaves a site, so there is nothing to make private"
    if settings.get("update_noise") and not settings.get("update_clip"):
        return "update_noise without update_clip protects nothing: an update without a bound needs noise without one"
    if settings.get("update_noise") and mixing == "similarity-running":
        return (
            "update_noise covers the update, and f-FedAP sends running batch-norm statistics beside it as they are: "
            "use another mixing"
        )
    return None


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


def noise_of_an_entry(epsilon: float, delta: float, clip: float, entries: int, patients: int) -> float:
    """Standard deviation of the noise in each entry of the patients' mean, in units of f's own spread."""
    return noise_multiplier(epsilon, delta) * SENSITIVITY * clip * sqrt(entries) / patients


def least_patients(epsilon: float, delta: float, clip: float, entries: int) -> int:
    """Patients below which the noise in an entry is above f's own spread, so that a distance says nothing."""
    return ceil(noise_of_an_entry(epsilon, delta, clip, entries, 1))


@lru_cache
def epsilon_of_updates(noise: float, rounds: int, delta: float = DELTA) -> float:
    """epsilon of a site's updates of all rounds, by Opacus' accountant of Rényi differential privacy.

    Every site takes part in every round, so there is no amplification by sampling.

    Args:
        noise: ``update_noise``; one data set in place of another moves a clipped update by up to twice its bound.
        rounds: updates that leave.
        delta: in (0, 1).

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
    return float(accountant.get_epsilon(delta, alphas=(1 + np.geomspace(1e-4, 1e6, 2000)).tolist()))


def account(settings: Mapping[str, Value], rounds: int) -> dict[str, Any] | None:
    """What results.json says of a run's differential privacy; None where there is none.

    Args:
        settings: in force.
        rounds: of the run.

    Raises:
        UserError: Opacus is needed and not installed.
    """
    found: dict[str, Any] = {}
    if epsilon := settings.get("statistics_epsilon"):
        delta = settings["statistics_delta"]
        found["statistics"] = {
            "epsilon": epsilon,
            "delta": delta,
            "clip": settings["statistics_clip"],
            "noise_multiplier": SENSITIVITY * noise_multiplier(epsilon, delta),
            "releases": 1,
            "neighbours": "one patient of the site replaced by another; a sample, where the data know no patients",
            "accountant": "analytic Gaussian mechanism (Balle and Wang 2018)",
        }
    if noise := settings.get("update_noise"):
        found["updates"] = {
            "epsilon": epsilon_of_updates(noise, rounds),
            "delta": DELTA,
            "clip": settings["update_clip"],
            "noise_multiplier": noise,
            "releases": rounds,
            "neighbours": "all data of the site replaced by any others",
            "accountant": f"RDP of Opacus {version('opacus')}, every site in every round",
        }
    return found or None


def in_words(privacy: Mapping[str, Any]) -> list[str]:
    """Sentences for a run's notes.

    Args:
        privacy: as :func:`account` gives it.
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
