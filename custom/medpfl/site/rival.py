"""The model that a site trains alone, beside the federation's: what taking part has to beat. It never leaves.

It starts from the run's first model and takes a round's local training in every round that the site takes part in, in
the order of samples of the method ``local``, whose model it is. Used is the round with the least validation loss, with
as much as the validation cases speak for of what the method adds at the end (fine-tuning): else a method that trains
longer would seem to gain by others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan

import torch
from torch import nn

from medpfl.config.run import RunConfig
from medpfl.core.parameters import State
from medpfl.core.seeding import Chance
from medpfl.core.site_data import SiteData
from medpfl.site.store import SiteStore, copied, keep_latest, usable
from medpfl.training.loop import TrainingDiverged, train_plainly
from medpfl.training.memory import Memory

logger = logging.getLogger(__name__)

ALONE, ALONE_BEST, ALONE_LOSS, ALONE_FINISHED = "alone", "alone_best", "alone_loss", "alone_finished"
ALONE_OPTIMIZER = "alone_optimizer"
"""Kinds of states in a site's store: after a round; of the best round; its number and validation loss; what mechanisms
make of the best round's at the end, as of the method's model; what the optimizer left in a round, where it is kept."""


@dataclass
class Rival:
    """Training alone.

    Attributes:
        name: the site's.
        config: the run.
        data: the site's.
        store: the site's.
        first: gives the whole state of the run's first model.
        chance: what is drawn at random in training, as the site's.
    """

    name: str
    config: RunConfig
    data: SiteData
    store: SiteStore
    first: Callable[[], State]
    chance: Chance

    def forget(self) -> None:
        """Drops what lies here from an earlier run."""
        for kind in (ALONE, ALONE_BEST, ALONE_LOSS, ALONE_FINISHED, ALONE_OPTIMIZER):
            self.store.keep(kind, ())

    def train(self, model: nn.Module, round_: int) -> None:
        """One round; a round that diverges leaves the rival as it was.

        Args:
            model: of the run's architecture, on the device, with any values.
            round_: its number.
        """
        config = self.config
        trainer = config.trainer.at(round_)
        earlier, state = self._before(round_)
        model.load_state_dict(state)
        memory = Memory(dict(self._left(earlier))) if trainer.keeps else None
        order = self.chance.order(self.name, round_, "shuffle")
        minimised = trainer.loss(config.learned.loss, self.data)
        try:
            train_plainly(model, self.data, trainer, config.local_epochs, order, minimised, memory)
        except TrainingDiverged as error:
            logger.warning("%s, trained alone: %s", self.name, error)
            return
        if memory is not None:
            self.store.put(ALONE_OPTIMIZER, round_, memory.state)
            keep_latest(self.store, ALONE_OPTIMIZER, round_)
        self.store.put(ALONE, round_, copied(model))
        keep_latest(self.store, ALONE, round_)
        measured = config.learned.mean_loss(model, self.data, "validation")
        loss = inf if measured is None or isnan(measured) else measured
        best, least = self._least()
        if best and loss > least:  # of cases that tell nothing the last round counts
            return
        self.store.put(ALONE_BEST, round_, copied(model))
        found = {"round": round_, "loss": loss}
        self.store.put(ALONE_LOSS, 0, {k: torch.tensor(v, dtype=torch.float64) for k, v in found.items()})
        self.store.keep(ALONE_BEST, (round_,))

    def best(self) -> State | None:
        """The whole state that the site would use, had it trained alone; None if there is none."""
        return self._best()[1]

    @property
    def round(self) -> int:
        """The round that :meth:`best` is of; 0 if there is none."""
        return self._best()[0]

    def _best(self) -> tuple[int, State | None]:
        """Where the best round's file is damaged, the last one that is not."""
        round_, _ = self._least()
        if round_ and (state := usable(self.store, ALONE_BEST, round_, self.name)) is not None:
            return round_, state
        for last in reversed(self.store.rounds(ALONE)):
            if (state := usable(self.store, ALONE, last, self.name)) is not None:
                return last, state
        return 0, None

    def _before(self, round_: int) -> tuple[int, State]:
        """The last round that left a model, and that; 0 and the first model if none did."""
        for earlier in range(round_ - 1, 0, -1):
            if (state := usable(self.store, ALONE, earlier, self.name)) is not None:
                return earlier, state
        return 0, self.first()

    def _left(self, round_: int) -> State:
        """What the optimizer left in a round; nothing before the first, or where the file is damaged."""
        return usable(self.store, ALONE_OPTIMIZER, round_, self.name) or {}

    def _least(self) -> tuple[int, float]:
        state = usable(self.store, ALONE_LOSS, 0, self.name)
        return (0, inf) if state is None else (int(state["round"]), float(state["loss"]))
