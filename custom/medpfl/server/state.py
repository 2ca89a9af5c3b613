"""What the server knows: what does not change during a run, and the state after each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from medpfl.config import RunConfig
from medpfl.messages import Failure
from medpfl.parameters import ParameterSplit, State
from medpfl.server.similarity import LayerStatistics
from medpfl.statefile import fingerprint

Phase = Literal["prepare", "train", "validate", "test", "done"]


@dataclass(frozen=True)
class Plan:
    """What does not change during a run.

    Attributes:
        config: the run.
        split: what is shared.
        initial_shared: the shared part of the seeded first model.
        statistics: names and shapes of the statistics that the mixing rests on, from the model
            (:func:`medpfl.site.statistics.statistics_shapes`); empty where it rests on none.
        pretrained: the whole state of the pretrained model f, where the mixing needs it.
        impress: makes a federated impression from the sites' mean shared state and the round: tensors for the messages
            of the next round, and what results.json says of it; may raise :class:`~medpfl.errors.Stopped`. None where
            the method has none.
    """

    config: RunConfig
    split: ParameterSplit
    initial_shared: State
    statistics: Mapping[str, tuple[int, ...]]
    pretrained: State | None = None
    impress: Callable[[State, int], tuple[State, dict[str, Any]]] | None = None

    @cached_property
    def given_f(self) -> str | None:
        """Fingerprint of f where it is the user's file, which may change; else f follows from the configuration."""
        own = self.pretrained is not None and self.config.all_settings.get("pretrain", "pooled") != "pooled"
        return fingerprint(self.pretrained) if own else None


@dataclass(frozen=True)
class ServerState:
    """All that the server knows after a step.

    Attributes:
        phase: what comes next.
        round: the last finished round.
        samples: training samples of the sites that have joined, as they said when they did; nothing changes them later.
        shared: by site, its next shared state; empty before round 1, when all start from the same.
        statistics: by site, where the mixing needs them.
        weights: W over all sites of the run, once it is known.
        impression: the federated impression that goes with the next round's messages; empty where there is none.
        history: one record a finished round, as in results.json.
        best_round: the round with the best mean validation measure so far; 0 if there is none.
        failures: what went wrong at which site.
        traffic: bytes that the sites sent and received in all tasks, hello and tests included.
        final: results on test data.
        pretrained: :attr:`Plan.given_f` when the run began.
    """

    phase: Phase = "prepare"
    round: int = 0
    samples: Mapping[str, int] = field(default_factory=dict)
    shared: Mapping[str, State] = field(default_factory=dict)
    statistics: Mapping[str, LayerStatistics] = field(default_factory=dict)
    weights: np.ndarray | None = None
    impression: State = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()
    best_round: int = 0
    failures: tuple[Failure, ...] = ()
    traffic: Mapping[str, int] = field(default_factory=lambda: {"sent_bytes": 0, "received_bytes": 0})
    final: Mapping[str, Any] | None = None
    pretrained: str | None = None
