"""What an engine tells whoever watches a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A moment of a run.

    Attributes:
        phase: of the server's state.
        round: finished rounds.
        answered: sites that have answered in the step under way.
        expected: sites that were asked.
    """

    phase: str
    round: int
    answered: int = 0
    expected: int = 0


Watch = Callable[[Progress], None]


def watch_nothing(_: Progress) -> None:
    """For runs that nobody watches."""
