"""What a method is made of: mechanisms, each with its settings, what travels for it, and its steps at both ends.

A mechanism leaves out what it does not have. The loop in ``site/``, ``server/`` and ``engine/`` asks mechanisms and
knows none by name; a site's side is :class:`LocalRound` -> :class:`~medpfl.training.part.Part`, the server's
:class:`ServerParts` -> :data:`ServerMove` and :data:`ServerStep`. What they are shown is
:mod:`medpfl.algorithms.views`, and found here too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from medpfl.algorithms.views import (
    LocalRound,
    Moved,
    PublicImages,
    Rule,
    Run,
    ServerMove,
    ServerParts,
    ServerStep,
    Source,
    Step,
    Turn,
)
from medpfl.core.channels import Channel
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.reasons import Reason
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, Value
from medpfl.core.site_data import SiteData
from medpfl.training.loop import Loss
from medpfl.training.part import Part

__all__ = [
    "LocalRound",
    "Measuring",
    "Mechanism",
    "Moved",
    "PublicImages",
    "Rule",
    "Run",
    "ServerMove",
    "ServerParts",
    "ServerStep",
    "Source",
    "Step",
    "Turn",
]

REPLACED = {
    "forward": "the pass through the model",
    "train": "the epochs of a round",
    "use": "the model that a site uses",
}
"""What a mechanism can have in the place of the run's."""


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
        replaces: ``forward`` and ``train``, if its :class:`~medpfl.training.part.Part` has them, and ``use``, if what
            the site uses is another model than the one that is trained in common: a run can have one of each.
        words: its own reasons for a site not to answer (:mod:`medpfl.site.words`).
        lasts: what its server step made for one round serves the next where nothing newer was made.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]] = Settings
    switch: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    listed: ClassVar[bool] = False
    newcomer: ClassVar[Rule | None] = None
    numbers: ClassVar[Mapping[str, tuple[float, float]]] = {}
    resists_forgetting: ClassVar[bool] = False
    replaces: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[tuple[Reason, ...]] = ()
    lasts: ClassVar[bool] = False

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
        for what in self.replaces:
            both = [other.switch or other.name for other in others if what in other.replaces]
            if len(both) > 1:
                return f"{' and '.join(both)} replace {REPLACED[what]}, each in its own way: choose one"
        return None

    def objective(self, run: Run) -> str:
        """What it adds to what a site minimises, in words."""
        return ""

    def further(self) -> str:
        """How much it trains after the last round, in words; empty for nothing."""
        return ""

    def each_round(self) -> str:
        """What it trains in a round beside the run's local epochs, in words; empty for nothing."""
        return ""

    def at_server(self, run: Run) -> str:
        """What it adds to the server's work, in words."""
        return ""

    def notes(self, run: Run, state: ServerState) -> list[str]:
        """What whoever reads the results must know."""
        return []

    def card(self, data: SiteData, classes: Sequence[str]) -> dict[str, Any]:
        """What the card of a site's model says of it, where the site uses the method's and nothing beside it.

        Args:
            data: the site's.
            classes: names, as the model's outputs are in order.
        """
        return {}

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

    def server_move(self, parts: ServerParts) -> ServerMove | None:
        """What it makes of the mix at the server, in each round, where all sites get the same.

        What it keeps for that stays at the server, is in its checkpoint, and travels nowhere.
        """

    def shown(self, state: ServerState) -> dict[str, Any] | None:
        """What results have under its name, at the end. It is asked before the first round too, to see that it can."""


class Measuring(Mechanism, ABC):
    """A mechanism whose sites send what they measure, beside or instead of what a :class:`Part` gives."""

    @abstractmethod
    def measured(self, channel: str, round_: LocalRound) -> State:
        """What goes to the server in a channel, where no :class:`Part` gave it."""
