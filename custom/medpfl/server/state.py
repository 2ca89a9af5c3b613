"""What does not change during a run, as the server knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from medpfl.algorithms.mechanism import Mechanism, ServerMove, ServerStep
from medpfl.algorithms.start import START
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.errors import UserError
from medpfl.core.messages import named
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import fingerprint
from medpfl.models.start_weights import Start


@dataclass(frozen=True)
class Plan:
    """What does not change during a run.

    Attributes:
        config: the run.
        split: what is shared.
        initial_shared: the shared part of the seeded first model.
        channels: what travels besides it, with the part of the method that each is of.
        pretrained: the whole state of the model f that goes with the hello, where the mixing needs it.
        start: what the run begins with, where it is not random.
        judged: how good f is (:meth:`~medpfl.algorithms.mixing_kinds.Mixing.judged`).
        steps: of the mechanisms after each round, by mechanism; each may raise :class:`~medpfl.core.errors.Stopped`.
        moves: what mechanisms make of the mix before that, likewise.
    """

    config: RunConfig
    split: ParameterSplit
    initial_shared: State
    channels: Mapping[Channel, Mechanism] = field(default_factory=dict)
    pretrained: State | None = None
    steps: Mapping[Mechanism, ServerStep] = field(default_factory=dict)
    moves: Mapping[Mechanism, ServerMove] = field(default_factory=dict)
    start: Start | None = None
    judged: Mapping[str, Any] | None = None

    @cached_property
    def given_f(self) -> str | None:
        """Fingerprint of f where it is the user's file, which may change; else f follows from the configuration."""
        own = self.pretrained is not None and self.config.all_settings.get("pretrain", "pooled") != "pooled"
        return fingerprint(self.pretrained) if own else None

    @property
    def brought_at_first(self) -> State:
        """The start weights as they travel with the first message to a site; empty where the run began at random."""
        return named(START, self.start.state) if self.start else {}

    @property
    def limited(self) -> list[Channel]:
        """The channels of whose tensors the server takes the mean, and which are measured by the other sites'."""
        return [c for c in self.channels if c.to_server and c.joined == "mean" and not c.spreads]

    def upward(self, task: str) -> list[tuple[Channel, Mechanism]]:
        """The channels whose tensors may come with the answer to a task."""
        return [(c, m) for c, m in self.channels.items() if c.to_server and task in c.tasks]


def require_same_pretrained(plan: Plan, state: ServerState) -> None:
    """Refuses another f than the one under which the run's sites took their statistics, for they are compared.

    Raises:
        UserError: the file that the user gave has changed, or is not the one whose fingerprint the run names.
    """
    named = plan.config.pretrained.removeprefix("sha256:")
    if named and plan.given_f not in (None, named):
        raise UserError(
            f"pretrain: {plan.config.all_settings['pretrain']} is not the model that the run names by its fingerprint, "
            f"{named[:12]}: give that file"
        )
    if state.pretrained and plan.given_f != state.pretrained:
        raise UserError(
            f"pretrain: {plan.config.all_settings['pretrain']} is not the model under which the run's sites took their "
            "statistics; restore the file"
        )
