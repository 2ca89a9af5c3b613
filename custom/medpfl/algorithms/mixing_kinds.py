"""How the sites' updates make each site's next shared state: what mixings of every kind have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from medpfl.algorithms.mechanism import Measuring, Mechanism, Rule, Run, ServerParts
from medpfl.core.parameters import State
from medpfl.core.server_state import ServerState


class Mixing(Mechanism, ABC):
    """How the sites' updates make each site's next shared state.

    Attributes:
        what: in a line.
        least_updates: below which its result would be one site's own.
        by_samples: the sites' numbers of training samples decide.
        common: all sites get the same.
        under_model: it rests on what a model f, which goes with the hello, says of the sites' data.
        weighs_sites: it weighs them against each other, so that the cap on another site's weight holds.
        by_statistics: it does so by statistics of layers' inputs, or by batch norm's running ones in their place.
    """

    what: ClassVar[str]
    least_updates: ClassVar[int] = 2
    by_samples: ClassVar[bool] = False
    common: ClassVar[bool] = False
    under_model: ClassVar[bool] = False
    weighs_sites: ClassVar[bool] = False
    by_statistics: ClassVar[bool] = False

    @property
    def own_share(self) -> float:
        """A site's own weight in its mix, where a setting says it."""
        return 0.0

    @classmethod
    def applies(cls, personal: str) -> bool:
        """A mixing goes with any personal part, or refuses it in words."""
        return True

    def hello(self, parts: ServerParts) -> State | None:
        """The whole state of the model f that goes with the hello."""

    def judged(self, parts: ServerParts, f: State) -> dict[str, Any] | None:
        """What results say of how good f is, as plain values; None where the server has no data to tell by."""

    def given(self, parts: ServerParts) -> State | None:
        """The state of f where the user gave it, checked; None where it is made or not needed."""


class MatrixMixing(Mixing):
    """A mixing by a matrix W."""

    newcomer: ClassVar[Rule] = Rule("the mean of the sites' models", "it has no row in W")

    @abstractmethod
    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """W, (N, N), for the mix after the next round.

        With a parameter ``updates`` W is made after each round, of what its sites sent: by site its shared state, as
        it left the site. It changes nothing of that.
        """


class MeasuredMixing(MatrixMixing, Measuring):
    """A mixing whose W rests on what the sites measure."""

    newcomer: ClassVar[Rule] = Rule("the sites' models by its own row of W", "it measures what they have measured")

    @abstractmethod
    def received(self, run: Run, state: ServerState, fresh: Sequence[str]) -> tuple[Any, list[tuple[str, str]]]:
        """W from what the sites have sent in the mixing's channel, and notes, each of a site.

        Args:
            run: the run.
            state: with all that is kept.
            fresh: the sites whose tensors have just come.
        """

    @abstractmethod
    def row_of(self, kept: Sequence[State], own: State) -> Any:
        """The row of W of a site that joins: (M,), from what M sites and it have sent."""


class CommonMixing(Mixing):
    """A mixing without a matrix, whose next state is common to all sites."""

    newcomer: ClassVar[Rule] = Rule("the common model", "all sites have the same")

    @abstractmethod
    def mixed(self, updates: Sequence[State]) -> State:
        """The common next state. Updates are emptied tensor by tensor."""
