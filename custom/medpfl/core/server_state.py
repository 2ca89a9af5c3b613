"""All that the server knows after a step of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from medpfl.core.messages import Failure
from medpfl.core.parameters import State

Phase = Literal["prepare", "train", "validate", "test", "done"]


@dataclass(frozen=True)
class ServerState:
    """The state after a step.

    Attributes:
        phase: what comes next.
        round: the last finished round.
        samples: training samples of the sites that have joined, as they said when they did; nothing changes them later.
        shared: by site, its next shared state; empty before round 1, when all start from the same.
        kept: by channel and site, what the site sent last (:attr:`~medpfl.core.channels.Channel.joined`).
        common: by channel, what goes with the next round's messages to all sites.
        moved_by: by mechanism, what its move of the common mix keeps at the server; it goes nowhere.
        weights: W over all sites of the run, where the mixing rests on what they sent, once it is known.
        history: one record a finished round, as in results.json.
        selection: by which measure the round is selected, and why (:func:`medpfl.tasks.selection.selection`); decided
            when the first sites have said hello.
        best_round: the round with the best mean validation measure so far; 0 if there is none.
        failures: what went wrong at which site.
        traffic: bytes that the sites sent and received in all tasks, hello and tests included.
        final: results on test data.
        pretrained: fingerprint of the model f that the user gave, under which sites took statistics.
        judged: how good f is, as results say it; None where there is none, or the server cannot tell.
        seconds: that the run has taken till this step, as the engine counts them.
        code: of a run that was gone on with, by module of others' code the SHA-256 of its file, with commas between
            where it has changed since; empty for what it is now.
    """

    phase: Phase = "prepare"
    round: int = 0
    samples: Mapping[str, int] = field(default_factory=dict)
    shared: Mapping[str, State] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    common: Mapping[str, State] = field(default_factory=dict)
    moved_by: Mapping[str, State] = field(default_factory=dict)
    weights: np.ndarray | None = None
    history: tuple[dict[str, Any], ...] = ()
    selection: Mapping[str, Any] = field(default_factory=dict)
    best_round: int = 0
    failures: tuple[Failure, ...] = ()
    traffic: Mapping[str, int] = field(default_factory=lambda: {"sent_bytes": 0, "received_bytes": 0})
    final: Mapping[str, Any] | None = None
    pretrained: str | None = None
    judged: Mapping[str, Any] | None = None
    seconds: float = 0.0
    code: Mapping[str, str] = field(default_factory=dict)
