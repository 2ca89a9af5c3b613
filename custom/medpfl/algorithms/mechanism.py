"""What a method is made of: mechanisms, each with its settings, what travels for it, and its steps at both ends.

A mechanism leaves out what it does not have. The loop in ``site/``, ``server/`` and ``engine/`` asks mechanisms and
knows none by name; a site's side is :class:`LocalRound` -> :class:`~medpfl.training.part.Part`, the server's
:class:`ServerParts` -> :data:`ServerStep`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.core.channels import Channel
from medpfl.core.messages import Message
from medpfl.core.noise import NoiseSource
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.seeding import generator
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, Value
from medpfl.core.site_data import SiteData
from medpfl.tasks import Task
from medpfl.training.loop import Loss
from medpfl.training.memory import Memory
from medpfl.training.part import Part
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
        noise: of differential privacy, for this answer.
        settle: for a site that joins: makes the model what it would begin with.
        memory: where optimizers' states stay from round to round; None where they start afresh.
        loss: what the site minimises on its own samples: the task's loss as the run's mechanisms change it.
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
    memory: Memory | None = None
    loss: Loss = field(init=False)

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

    def order(self, purpose: str) -> torch.Generator:
        """Random numbers for a purpose, from the run's seed, the site and the round."""
        return generator(self.run.seed, self.site, self.when, purpose)


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


ServerStep = Callable[[Turn], Step | None]
"""The server's side of a mechanism after a round but the last; None leaves what goes to the sites as it is."""


class Mechanism:
    """One idea of a method.

    Attributes:
        name: of its channel, of its state at a site and of what results say of it.
        settings_class: its settings.
        switch: the setting that turns it on, so that any method can take it up; empty where only a method has it.
        also: further settings that do.
        listed: results list the switch of a method that does not take it up, too.
        newcomer: what a site that joins after training gets of it.
        numbers: what it reports of a site in each round: name to the least and the most that it can be.
        resists_forgetting: its aim is that local training forgets less, which is then measured.
        replaces: ``forward`` or ``train``, if its :class:`~medpfl.training.part.Part` has one: a run can have one of
            each.
        words: patterns of its own reasons for a site not to answer (:mod:`medpfl.site.words`).
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]] = Settings
    switch: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    listed: ClassVar[bool] = False
    newcomer: ClassVar[Rule | None] = None
    numbers: ClassVar[Mapping[str, tuple[float, float]]] = {}
    resists_forgetting: ClassVar[bool] = False
    replaces: ClassVar[Literal["forward", "train", ""]] = ""
    words: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Settings):
        self.settings: Any = settings

    @classmethod
    def applies(cls, personal: str) -> bool:
        """Whether a run with this personal part can have it at all."""
        return personal != "everything"

    @classmethod
    def is_on(cls, values: Mapping[str, Value]) -> bool:
        """Whether these settings turn it on, where the method does not have it by itself."""
        return any(values.get(name) for name in cls.switches())

    @classmethod
    def switches(cls) -> tuple[str, ...]:
        """The settings that turn it on."""
        return (cls.switch, *cls.also) if cls.switch else ()

    @classmethod
    def lacking(cls, name: str, run: Run) -> str | None:
        """Why a setting of its own has no meaning in a run that cannot have it, where that needs words of its own."""

    def refuses(self, run: Run) -> str | None:
        """Why the run makes no sense with it, in words; None if it does."""

    def displaced(self, others: Sequence[Mechanism]) -> str | None:
        """Why the run makes no sense with another mechanism that replaces what it does, in words; None if none does."""
        both = [other.switch for other in others if self.replaces and other.replaces == self.replaces]
        what = {"forward": "the pass through the model", "train": "the epochs of a round"}.get(self.replaces)
        return f"{' and '.join(both)} replace {what}, each in its own way: choose one" if len(both) > 1 else None

    def objective(self, run: Run) -> str:
        """What it adds to what a site minimises, in words."""
        return ""

    def at_server(self, run: Run) -> str:
        """What it adds to the server's work, in words."""
        return ""

    def notes(self, run: Run, state: ServerState) -> list[str]:
        """What whoever reads the results must know."""
        return []

    def privacy(self, run: Run) -> dict[str, dict[str, Any]]:
        """The account of its differential privacy, by what it covers."""
        return {}

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """What travels for it besides the shared part."""
        return ()

    def asks(self, channel: Channel, run: Run, state: ServerState, site: str) -> bool:
        """Whether a site is asked for a channel's tensors in the next message."""
        return True

    def suits(self, model: nn.Module, split: ParameterSplit, x: torch.Tensor) -> None:
        """Raises UserError, in words, if it cannot go with a network.

        Args:
            model: in eval mode; is afterwards what it was.
            split: what of it is shared.
            x: a batch of inputs.
        """

    def loss(self, round_: LocalRound, loss: Loss) -> Loss:
        """What the site minimises on its own samples, from the task's loss."""
        return loss

    def begin(self, round_: LocalRound) -> Part | None:
        """Its part in a round of local training."""

    def adapts(self, round_: LocalRound) -> Part | None:
        """Its part in the training of a site that joins, epoch by epoch."""

    def leaving(self, shared: State, round_: LocalRound) -> State:
        """A step of the update's way out: the shared state that leaves, from the one that training left."""
        return shared

    def in_use(self, round_: LocalRound) -> State | None:
        """The whole state that the site uses, where it is not what ``round_.model`` has.

        That is what was received after round ``round_.when`` with the personal part, or what a mechanism before this
        one has made of it; ``round_.kept()`` is of that round.
        """

    def finish(self, round_: LocalRound) -> bool:
        """Changes the model that the site is going to use, once, after the last round; whether it did."""
        return False

    def server_step(self, parts: ServerParts) -> ServerStep | None:
        """Its step at the server after each round."""

    def shown(self, state: ServerState) -> dict[str, Any] | None:
        """What results have under its name, at the end."""


class Measuring(Mechanism, ABC):
    """A mechanism whose sites send what they measure, beside or instead of what a :class:`Part` gives."""

    @abstractmethod
    def measured(self, channel: str, round_: LocalRound) -> State:
        """What goes to the server in a channel, where no :class:`Part` gave it."""
