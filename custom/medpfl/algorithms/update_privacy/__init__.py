"""Differential privacy of what sites send each round: clipping and noise as a step of the update's way out.

Client-level, with the noise at the site, so that the server need not be trusted (McMahan, Ramage, Talwar, Zhang:
Learning differentially private recurrent language models, ICLR 2018). Any method can have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from medpfl.algorithms.mechanism import LocalRound, Mechanism, Run
from medpfl.algorithms.update_privacy.update import protected_update
from medpfl.core.channels import Channel
from medpfl.core.differential_privacy import DELTA, epsilon_of_updates
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.settings import Settings, Value, setting
from medpfl.core.version import version

LEAST_NOISE = 0.001
"""Less is no protection, and its account, or the grid that it is rounded to, beyond a float or a whole number."""


class Bounds(Settings):
    """0 is off."""

    update_clip: float = setting(0.0, "bound S of an update's L2 norm; 0 is off", symbol="S", ge=0)
    update_noise: float = setting(
        0.0, "standard deviation of the noise in each entry, in units of S; 0 is off", ge=0, le=1e5
    )


class UpdatePrivacy(Mechanism):
    """Difference, clip, noise (:mod:`medpfl.algorithms.update_privacy.update`)."""

    settings_class = Bounds
    name = "update_privacy"
    switch = "update_clip"
    listed = True

    @classmethod
    def is_on(cls, values: Mapping[str, Value]) -> bool:
        """Noise without a bound is refused rather than ignored."""
        return bool(values.get("update_clip") or values.get("update_noise"))

    @classmethod
    def lacking(cls, name: str, run: Run) -> str | None:
        """With nothing shared no update leaves."""
        if name not in Bounds.model_fields or run.resolved_personal != "everything":
            return None
        return f"{name}: with everything personal no update leaves a site, so there is nothing to make private"

    def refuses(self, run: Run) -> str | None:
        """Noise that protects nothing."""
        if self.settings.update_noise and not self.settings.update_clip:
            return (
                "update_noise without update_clip protects nothing: an update without a bound needs noise without one"
            )
        if 0 < self.settings.update_noise < LEAST_NOISE:
            return f"update_noise={self.settings.update_noise:g} protects nothing: give {LEAST_NOISE:g} at least"
        return None

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """None of its own; UserError where noise would break what is shared."""
        if self.settings.update_noise and (found := _running_variance(model, split)):
            raise UserError(
                f"update_noise: {found} is shared, and noise makes a running variance negative: keep batch norm at the "
                "sites (--personal batch-norm), or choose a model without it"
            )
        return ()

    def leaving(self, shared: State, round_: LocalRound) -> State:
        """The received state and the clipped difference, with noise."""
        return protected_update(round_.message.shared, shared, round_.run.all_settings, round_.noise())

    def privacy(self, run: Run) -> dict[str, dict[str, Any]]:
        """The account of all rounds; UserError if Opacus is needed and not installed."""
        if not (noise := run.all_settings["update_noise"]):
            return {}
        return {
            "updates": {
                "epsilon": epsilon_of_updates(noise, run.rounds),
                "delta": DELTA,
                "clip": run.all_settings["update_clip"],
                "noise_multiplier": noise,
                "releases": run.rounds,
                "neighbours": "all data of the site replaced by any others",
                "accountant": f"RDP of Opacus {version('opacus')}, every site in every round",
            }
        }


def _running_variance(model: nn.Module, split: ParameterSplit) -> str | None:
    """The first shared running variance of a batch-norm layer."""
    shared = set(split.shared_names)
    names = (f"{path}.running_var" if path else "running_var" for path in batch_norm_layers(model))
    return next((name for name in names if name in shared), None)
