"""Differential privacy of FedAP's statistics: the settings, what they mean nothing with, and the account of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medpfl.algorithms.mechanism import Run
from medpfl.core.differential_privacy import SENSITIVITY, noise_multiplier
from medpfl.core.reasons import Reason
from medpfl.core.settings import Settings, Value, setting

LARGE_DELTA = Reason(
    "statistics_delta {number} is more than one in the number of the site's patients, so that it could give one away "
    "outright: choose a smaller one"
)
FEW_PATIENTS = Reason(
    "the site has too few patients for statistics_epsilon {number}: below {number} the noise is larger than what it "
    "hides; choose a larger epsilon, or mixing uniform, which needs no statistics"
)


class StatisticsPrivacy(Settings):
    """One patient of the site replaced by another; epsilon 0 is off."""

    statistics_epsilon: float = setting(0.0, "epsilon of the statistics for one patient; 0 is off", ge=0)
    statistics_delta: float = setting(1e-5, "delta beside it", gt=0, le=1)
    statistics_clip: float = setting(
        1.0, "bound of the root mean square of a patient's vector, whose entries are standardised by f", gt=0
    )


def lacking(name: str, run: Run) -> str | None:
    """Why a setting of these has no meaning with the run's mixing, in words; None for other settings."""
    if name not in StatisticsPrivacy.model_fields:
        return None
    if run.resolved_mixing == "similarity-running":
        return (
            f"{name}: f-FedAP's running statistics follow the training's momentum, so one patient's share "
            "of them has no bound and no noise would be enough: use fedap or d-fedap"
        )
    return f"{name}: mixing {run.resolved_mixing!r} rests on no statistics, so there is nothing to make private"


def refusal(settings: Mapping[str, Value]) -> str | None:
    """Why settings that the user gave change nothing, in words."""
    given = [name for name in StatisticsPrivacy.model_fields if name in settings]
    if given and "statistics_epsilon" not in given:
        return f"{given[0]} without statistics_epsilon changes nothing: give it too, e.g. statistics_epsilon=3"
    return None


def account(settings: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """What results.json says of it; empty where it is off."""
    if not (epsilon := settings["statistics_epsilon"]):
        return {}
    return {
        "statistics": {
            "epsilon": epsilon,
            "delta": settings["statistics_delta"],
            "clip": settings["statistics_clip"],
            "noise_multiplier": SENSITIVITY * noise_multiplier(epsilon, settings["statistics_delta"]),
            "releases": 1,
            "neighbours": "one patient of the site replaced by another; a sample, where the data know no patients",
            "accountant": "analytic Gaussian mechanism (Balle and Wang 2018)",
        }
    }
