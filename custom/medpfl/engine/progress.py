"""What an engine tells whoever watches a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A moment of a run.

    Attributes:
        phase: of the server's state; ``simulator`` while FLARE's begins, ``submitted`` while a job waits at FLARE's
            server, ``unreachable`` while that server does not answer.
        round: finished rounds.
        answered: sites that have answered in the step under way.
        expected: sites that were asked.
        note: what a job waits for, for whom a step waits while no answer comes, or how long the server is asked.
    """

    phase: str
    round: int
    answered: int = 0
    expected: int = 0
    note: str = ""


Watch = Callable[[Progress], None]


def watch_nothing(_: Progress) -> None:
    """For runs that nobody watches."""
