"""Which weights may come to a site: the contract's first ones, later ones near those, none that show single images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import nn

from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.messages import Message
from medpfl.core.parameters import State, StateError, distance
from medpfl.core.site_data import SiteData
from medpfl.site import words
from medpfl.site.contract import Record, place
from medpfl.site.copied_rows import copying_layer
from medpfl.site.policy import SitePolicy
from medpfl.site.steering import led

_START_TOLERANCE = 1e-5
"""By how much the first model may differ between machines, whose libraries draw random numbers in their last bits."""
_ROUNDS = 16
"""So many rounds without the site count for the distance, and no more."""


@dataclass(frozen=True)
class Arriving:
    """The checks of the weights that come to a site.

    Attributes:
        config: of the contract.
        policy: the site's.
        start: the shared part of the run's seeded first model; empty for a site that joins.
        first: the run's model as it was drawn at random, by name, to compare what comes with: start weights are the
            server's choice, and so no measure of it.
        check_shared: raises StateError unless tensors are exactly the shared state.
        begins: the start weights, with whichever message they come; empty where the run began at random.
        received: the shared part that was received for a round or a later one, from the site's store, with its round;
            None if none is kept.
        first_step: how far one round of training leads from the first model, for a site that comes late.
    """

    config: RunConfig
    policy: SitePolicy
    start: State
    first: State
    check_shared: Callable[[State], None]
    begins: State = field(default_factory=dict)
    received: Callable[[int, nn.Module], tuple[int, State] | None] = lambda round_, model: None
    first_step: Callable[[nn.Module], float] = lambda model: 0.0

    def require_place(self, record: Record, message: Message, model: nn.Module, asks: Callable[[], None]) -> None:
        """The first model is the contract's; a later one lies where mixes of honest updates do.

        Args:
            record: of what was answered.
            message: what came.
            model: of the run's architecture.
            asks: called before the site's data are asked, where no update has left to compare with, and before a
                refusal.

        Raises:
            StateError: neither.
        """
        self.check_shared(message.shared)
        where = place(self.config, message)
        if where == 1:
            for name, tensor in message.shared.items():
                if not _alike(tensor, self.start[name]):
                    raise StateError(words.OTHER_START(name))
        elif self.policy.largest_jump:
            last, origin = record.trained, self.start
            if last:  # where nothing is kept, all the way from the start, whose length is known
                last, origin = self.received(last, model) or (int(last == 1), self.start)
            self._require_near(distance(origin, message.shared), abs(where - last), record, model, asks)

    def require_steps(
        self,
        record: Record,
        message: Message,
        model: nn.Module,
        channels: Iterable[Channel],
        data: SiteData,
        asks: Callable[[], None],
    ) -> State:
        """What is added to every step leads to no weights that might not come; gives those that it leads to.

        Args:
            record: of what was answered.
            message: what came.
            model: of the run's architecture.
            channels: of the run.
            data: the site's.
            asks: as in :meth:`require_place`.

        Raises:
            StateError: it does.
        """
        places = list(led(self.config, channels, message, data, even=self.policy.own_seed))
        for there in places:
            try:
                self.require_own_rows(there)
            except StateError:  # where steps lead rests on how many there are
                asks()
                raise
        if not places:
            return message.shared
        if self.policy.largest_jump and (way := distance(message.shared, places[-1])):
            self._require_near(way, 1, record, model, asks, tells=False)
        return places[-1]

    def require_own_rows(self, shared: State) -> None:
        """Of all weights that come, also those under which statistics are asked for.

        Args:
            shared: the weights, by name.

        Raises:
            StateError: rows of a layer copy each other.
        """
        known = {name: t for name, t in shared.items() if name in self.first}
        if self.policy.copied_rows < 1 and known:
            layer = copying_layer(known, self.first, self.policy.copied_rows)
            if layer is not None:
                raise StateError(words.COPIED_ROWS(layer))

    def _require_near(
        self,
        way: float,
        rounds: int,
        record: Record,
        model: nn.Module,
        asks: Callable[[], None],
        *,
        tells: bool = True,
    ) -> None:
        """StateError for what is too far.

        Args:
            way: how far it is.
            rounds: that lead there.
            record: of what was answered.
            model: of the run's architecture.
            asks: see :meth:`require_place`.
            tells: the refusal may say how far: the way is between places that the server knows.
        """
        if not record.step:
            asks()
        step = record.step or self.first_step(model)
        times = way / step if step else float("inf")
        # Rounds that passed without this site are no leave to jump as far as all of them.
        limit = self.policy.largest_jump * sqrt(min(max(1, rounds), _ROUNDS))
        if times <= limit:
            return
        asks()  # what is refused here tells how far it is, and counts as a question
        if not record.step:  # of an update that has not left nothing is told
            raise StateError(words.FAR_AT_FIRST(limit))
        if not tells:
            raise StateError(words.FAR_BY_STEPS(limit))
        raise StateError(words.TOO_FAR(f"{times:.1f}" if times < 1e5 else "99999", limit))


def _alike(received: torch.Tensor, own: torch.Tensor) -> bool:
    own = own.to(received.device)
    fits = received.shape == own.shape
    return fits and bool(torch.allclose(received, own.to(received.dtype), rtol=_START_TOLERANCE, atol=_START_TOLERANCE))
