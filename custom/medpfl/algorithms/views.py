"""What a mechanism is shown: the run, a task of one site, and a finished round at the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.core.messages import Message
from medpfl.core.noise import NoiseSource
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.seeding import Chance, Order
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Value
from medpfl.core.site_data import SiteData
from medpfl.tasks import Task
from medpfl.training.loop import Loss
from medpfl.training.memory import Memory
from medpfl.training.trainer import Trainer


class Run(Protocol):
    """What mechanisms see of a run's configuration (:class:`medpfl.config.run.RunConfig`)."""

    algorithm: str
    settings: Mapping[str, Value]
    sites: int
    rounds: int
    local_epochs: int
    min_sites: int
    seed: int
    holdout: float
    held_out: int | str
    intra_op_threads: int
    largest_weight: float
    weight_cap: float
    pretrained: str
    all_settings: Mapping[str, Value]
    learned: Task
    trainer: Trainer
    resolved_personal: str
    resolved_mixing: str
    site_names: Sequence[str]


class Source(Protocol):
    """What mechanisms see of where data come from (:class:`medpfl.data.source.DataSource`)."""

    def site(self, name: str, device: torch.device) -> SiteData:
        """One site's data, on the device."""

    def model_arguments(self) -> dict[str, Any]:
        """``in_channels``, ``num_classes`` and ``image_size`` for the model, as far as the data say."""

    def pooled_training(self, share: float, device: torch.device) -> SiteData:
        """A share of all sites' training data together; NotInOnePlace unless this is a simulation."""

    def set_aside(self, count: int, rng: np.random.Generator) -> Tensor:
        """Images that no site has, (at most ``count``, C, H, W) float32; UserError if there are none."""

    def held_out(self, device: torch.device, *, divided: bool = False) -> dict[str, SiteData]:
        """Centres that take no part in training, by name, with all samples as the test part; empty without any."""


PublicImages = Callable[[Path, int, tuple[int, int, int], np.random.Generator], Tensor]
"""Images of a file or a folder: from its path, how many, (C, H, W) and what draws them to (n, C, H, W) float32."""


@dataclass(frozen=True)
class Rule:
    """What a site that joins after training gets, and why: the papers say nothing of newcomers."""

    what: str
    why: str


@dataclass
class LocalRound:
    """One task of one site, as a mechanism sees it.

    Attributes:
        site: its name.
        run: the run.
        when: the round's number, counted from 1; ``join`` or ``end`` for what a site does after the last.
        message: from the server.
        model: with the values that the task begins with, on the device; after training with those it left.
        split: what is shared.
        data: the site's own.
        kept: gives the mechanism's own state that the site has kept from its last round; None if there is none yet.
        kept_counted: the same of the last round whose answer the server used, for what both ends must have alike: a
            later answer may have been lost, late or refused. What :attr:`kept` gives where nobody says.
        noise: of differential privacy, for this answer.
        settle: for a site that joins: makes the model what it would begin with.
        chance: what is drawn at random here; None for the run's.
        training: the order of the samples that the model is trained on; None before a round's epochs.
        memory: where optimizers' states stay from round to round; None where they start afresh.
        loss: what the site minimises on its own samples: the task's loss as the run's mechanisms change it.
        likelihood: the same without weights of the classes, for what is of one sample.
    """

    site: str
    run: Run
    when: int | str
    message: Message
    model: nn.Module
    split: ParameterSplit
    data: SiteData
    kept: Callable[[], State | None]
    noise: Callable[[], NoiseSource]
    settle: Callable[[], None] = lambda: None
    chance: Chance | None = None
    training: torch.Generator | None = None
    memory: Memory | None = None
    kept_counted: Callable[[], State | None] | None = None
    loss: Loss = field(init=False)
    likelihood: Loss = field(init=False)

    def __post_init__(self) -> None:
        self.kept_counted = self.kept_counted or self.kept

    @property
    def device(self) -> torch.device:
        """The model's."""
        return next(self.model.parameters()).device

    def brought(self, channel: str) -> State:
        """What came in a channel, on the device; empty if nothing did."""
        return {name: tensor.to(self.device) for name, tensor in self.message.brought(channel).items()}

    @property
    def trainer(self) -> Trainer:
        """How the site takes its steps in this round; outside of rounds at the rate that the settings say."""
        return self.run.trainer.at(self.when)

    def order(self, purpose: str) -> Order:
        """Random numbers for a purpose, from the seed, the site and the round."""
        return (self.chance or Chance(self.run.seed)).order(self.site, self.when, purpose)


@dataclass(frozen=True)
class ServerParts:
    """What the server's side of a mechanism may be made of.

    Attributes:
        run: the run.
        split: what is shared.
        model: a fresh model on the server's device.
        initial_shared: the shared part of the first model.
        initial_personal: its personal part.
        source: where data come from, in a simulation all of them.
        public_images: reads images that the user gives.
        device: the server's.
        stop: whether the run is to end; long work then raises :class:`~medpfl.core.errors.Stopped`.
    """

    run: Run
    split: ParameterSplit
    model: Callable[[], nn.Module]
    initial_shared: State
    initial_personal: State
    source: Source
    public_images: PublicImages
    device: torch.device
    stop: Callable[[], bool]


@dataclass(frozen=True)
class Turn:
    """A finished round, as the server's step of a mechanism sees it.

    Attributes:
        state: after the mix.
        mean: the sites' mean shared state, weighted as their numbers of samples count; made when it is asked for.
        sent: by channel, the mean of what the sites sent in this round (:attr:`Channel.joined`).
        present: how many sites took part.
    """

    state: ServerState
    mean: Callable[[], State]
    sent: Mapping[str, State] = field(default_factory=dict)
    present: int = 0


class Step(NamedTuple):
    """What a server's step gives: the tensors of the mechanism's channel for the next round, and what is recorded."""

    common: State
    report: dict[str, Any] | None = None


class Moved(NamedTuple):
    """What a server's move gives: the next common shared state, and what the mechanism keeps at the server for it."""

    common: State
    kept: State


ServerMove = Callable[..., Moved]
"""What a mechanism makes of a mix that all sites get: from the common state before the round, the mix, and what its
last move kept, empty before the first. It changes none of them. One with a parameter ``share`` is told by it what share
of the run's sites took part in the round."""
ServerStep = Callable[[Turn], Step | None]
"""The server's side of a mechanism after a round but the last; None leaves what goes to the sites as it is."""
