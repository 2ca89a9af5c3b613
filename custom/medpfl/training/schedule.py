"""The learning rate of a round, as a function of the round's number and of nothing that has happened.

torch's schedulers count the steps of one optimizer's life. Here every round has an optimizer of its own, a site may
miss rounds, and a run may be killed and gone on with: so these are their closed forms, over rounds
(``CosineAnnealingLR``, ``PolynomialLR``, ``StepLR``), with a linear rise before them.
"""

from __future__ import annotations

from math import cos, pi
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from medpfl.training.settings import Training


def rate(settings: Training, round_: int, rounds: int) -> float:
    """The rate in force in all steps of a round.

    With w rounds of warm-up round r <= w has lr r / (w + 1). After it t = (r - 1 - w) / (R - w) is the share of the
    schedule that lies behind, from 0 to less than 1: cosine has lr (1 + cos(pi t)) / 2, poly lr (1 - t)^power, step
    lr factor^k after k times ``step_rounds`` rounds.

    Args:
        settings: of training.
        round_: r, counted from 1.
        rounds: R, of the run.
    """
    lr, behind = settings.lr, round_ - 1 - settings.lr_warmup
    if behind < 0:
        return lr * round_ / (settings.lr_warmup + 1)
    share = behind / (rounds - settings.lr_warmup)
    match settings.schedule:
        case "cosine":
            return lr * (1 + cos(pi * share)) / 2
        case "poly":
            return lr * (1 - share) ** settings.poly_power
        case "step":
            return lr * settings.step_factor ** (behind // settings.step_rounds)
    return lr


def problem(settings: Training, rounds: int) -> str | None:
    """Which settings make no schedule, in words."""
    if settings.lr_warmup >= rounds:
        return f"lr_warmup={settings.lr_warmup} leaves no round at the full rate: the run has {rounds}"
    for schedule, names in {"poly": ("poly_power",), "step": ("step_rounds", "step_factor")}.items():
        for name in names:
            if settings.schedule != schedule and getattr(settings, name) != type(settings).model_fields[name].default:
                return f"setting {name} is for schedule={schedule}; the schedule is {settings.schedule}"
    return None
