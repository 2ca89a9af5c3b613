"""What mechanisms make, once, of the models that a site is going to use, after the last round."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from medpfl.core.messages import Message
from medpfl.core.parameters import State
from medpfl.site.method import Method
from medpfl.site.rival import ALONE_FINISHED, Rival
from medpfl.site.store import FINISHED, MODEL, SiteStore, copied, usable
from medpfl.training.loop import TrainingDiverged

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finishing:
    """Made once and kept, so that the same question gets the same answer.

    Attributes:
        name: the site's.
        store: the site's.
        rival: the model that it trained alone; None where there is none.
        method: gives the run's mechanisms for the end of a message's round, with a model.
    """

    name: str
    store: SiteStore
    rival: Rival | None
    method: Callable[[Message, nn.Module], Method]

    def finished(self, message: Message, model: nn.Module, round_: int) -> bool:
        """Makes the model what the site is going to use of a round; False if it has none of that round."""
        if (state := usable(self.store, FINISHED, round_, self.name)) is not None:
            model.load_state_dict(state)
            return True
        if (state := usable(self.store, MODEL, round_, self.name)) is None:
            return False
        self._finish(FINISHED, message, model, round_, state)
        return True

    def alone(self, message: Message, model: nn.Module) -> State | None:
        """What they make of the model that the site trained alone; None if that is nothing."""
        if not self.rival or (state := self.rival.best()) is None:
            return None
        round_ = self.rival.round
        if (finished := usable(self.store, ALONE_FINISHED, round_, self.name)) is None:
            self._finish(ALONE_FINISHED, message, model, round_, state)
            finished = usable(self.store, ALONE_FINISHED, round_, self.name)
        return finished

    def _finish(self, kind: str, message: Message, model: nn.Module, round_: int, state: State) -> None:
        """Lets mechanisms change a model, and keeps it if one did."""
        model.load_state_dict(state)
        try:
            if self.method(replace(message, round=round_), model).finish():
                self.store.put(kind, round_, copied(model))
        except TrainingDiverged as error:  # the server's last model may be any: the site must not end without one
            logger.warning("%s, model of round %d as it was before the end: %s", self.name, round_, error)
            model.load_state_dict(state)
