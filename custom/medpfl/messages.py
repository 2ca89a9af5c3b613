"""What the server and a site say to each other; an engine only carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Task = Literal["prepare", "train", "validate", "test", "statistics", "join"]
"""The last two are for a site that joins a finished run (:mod:`medpfl.joining`), the others for sites that train."""

STATISTICS = "statistics/"
"""Prefix of batch-norm statistics among an update's tensors, so that filters see them like any other key."""

STATISTICS_OF = {"similarity": "batch-norm", "similarity-classifier": "classifier", "similarity-running": "running"}
"""By mixing: the kind of statistics that a message asks for."""

IMPRESSION = "impression/"
"""Prefix of the federated impression among a message's tensors: ``images`` and ``labels``."""


@dataclass(frozen=True)
class Message:
    """From the server to one site.

    Attributes:
        task: what to do.
        round: the round it belongs to, counted from 1; 0 before training.
        tensors: the site's own next shared state, or the pretrained model's state for ``prepare``; entries that start
            with ``impression/`` are the federated impression.
        info: small JSON values.
    """

    task: Task
    round: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shared(self) -> dict[str, Tensor]:
        """The tensors that are the model's."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.startswith(IMPRESSION)}

    @property
    def impression(self) -> tuple[Tensor, Tensor] | None:
        """The impression's images (n, C, H, W) float16 and labels (n,) int64, if there is one."""
        if f"{IMPRESSION}images" not in self.tensors:
            return None
        return self.tensors[f"{IMPRESSION}images"], self.tensors[f"{IMPRESSION}labels"].long()


@dataclass(frozen=True)
class Update:
    """From one site to the server.

    Attributes:
        site: the sender, as the transport knows it.
        round: the round of the message that this answers.
        tensors: the shared state after training; entries that start with ``statistics/`` are layer statistics. The
            server consumes them.
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


def named_statistics(statistics: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Layers' means and variances under the names by which they travel."""
    return {
        f"{STATISTICS}{path}/{which}": value
        for path, pair in statistics.items()
        for which, value in zip(("mean", "variance"), pair, strict=True)
    }
