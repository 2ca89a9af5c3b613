"""What the server and a site say to each other; an engine only carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

Task = Literal["prepare", "train", "follow", "validate", "test", "statistics", "join"]
"""The last two are for a site that joins a finished run, the others for sites that train. In a round that a site
follows, others train, and it judges what came."""


@dataclass(frozen=True)
class Message:
    """From the server to one site.

    Attributes:
        task: what to do.
        round: the round it belongs to, counted from 1; 0 before training.
        tensors: the site's own next shared state, or a whole model's for ``prepare``; entries with a / in their names
            travel in a channel (:mod:`medpfl.core.channels`).
        info: small JSON values; those of every run have a property each. ``split`` and ``input_format`` describe what
            is shared, and the run's data; ``select_by`` and ``epochs`` are what a task needs to know besides.
    """

    task: Task
    round: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shared(self) -> dict[str, Tensor]:
        """The tensors that are the model's."""
        return {name: tensor for name, tensor in self.tensors.items() if "/" not in name}

    @property
    def asked(self) -> tuple[str, ...]:
        """The channels whose tensors the answer shall bring."""
        asked = self.info.get("asked", ())
        return tuple(asked) if isinstance(asked, list | tuple) and all(isinstance(a, str) for a in asked) else ("",)

    @property
    def counted_rounds(self) -> tuple[int, ...] | None:
        """The last two rounds whose answers of this site the server used, ascending; None where it does not say."""
        counted = self.info.get("counted")
        if not isinstance(counted, list | tuple) or len(counted) > 2:
            return None
        return tuple(sorted(counted)) if all(type(n) is int and n > 0 for n in counted) else None

    @property
    def counted(self) -> int | None:
        """The last of :attr:`counted_rounds`, 0 for none; None where the server does not say."""
        return None if self.counted_rounds is None else max(self.counted_rounds, default=0)

    @property
    def best_round(self) -> int:
        """The best round so far, as the server has it; 0 where it says none."""
        return self._said_round("best_round", 0)

    @property
    def selected_round(self) -> int:
        """The round whose models are tested as the selected one; its own where it says none."""
        return self._said_round("selected_round", self.round)

    def _said_round(self, name: str, otherwise: int) -> int:
        said = self.info.get(name)
        return said if type(said) is int and 0 <= said <= self.round else otherwise

    def used_share(self, channel: str) -> float:
        """Which share of what the last answer that counted brought in a channel the server used, in [0, 1]."""
        scaled = self.info.get("scaled")
        share = scaled.get(channel, 1.0) if isinstance(scaled, dict) else 1.0
        return float(share) if isinstance(share, int | float) and 0 <= share <= 1 else 1.0

    def brought(self, channel: str) -> dict[str, Tensor]:
        """What came in a channel, by name without the channel's."""
        return of_channel(channel, self.tensors)


@dataclass(frozen=True)
class Update:
    """From one site to the server.

    Attributes:
        site: the sender, as the transport knows it.
        round: the round of the message that this answers.
        tensors: the shared state after training, and what was asked for in channels. The server consumes them.
        metrics: numbers about the site's model and data, nested by part (``validation``, ``test``).
        seconds: time the site spent.
    """

    site: str
    round: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Failure:
    """A site's answer that did not come or cannot be used."""

    site: str
    round: int
    reason: str


class NotAsked(Failure):
    """Of a site that the question did not reach."""


@dataclass(frozen=True)
class Withheld(Failure):
    """Of a site whose reason may hold what must not leave it.

    Attributes:
        told: what leaves in its place.
    """

    told: str


Value = TypeVar("Value")


def named(channel: str, tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Tensors, or what is said of them, by the names under which they travel in a channel."""
    return {f"{channel}/{name}": value for name, value in tensors.items()}


def in_channel(channel: str, tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Those that travel in a channel, by the names under which they do."""
    return {name: value for name, value in tensors.items() if name.startswith(f"{channel}/")}


def of_channel(channel: str, tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The reverse of :func:`named`: those of the channel alone."""
    return {name.removeprefix(f"{channel}/"): value for name, value in in_channel(channel, tensors).items()}
