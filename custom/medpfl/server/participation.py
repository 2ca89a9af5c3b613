"""Who trains in a round, and how many must answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from medpfl.config.run import RunConfig
from medpfl.core.messages import Task
from medpfl.core.seeding import generator


def drawn(config: RunConfig, round_: int, joined: Sequence[str]) -> set[str]:
    """The sites that train in a round, each as likely as any; all where the run draws none.

    Args:
        config: the run; its seed decides.
        round_: the round's number.
        joined: the sites that are there, in the run's order.
    """
    if not config.turnout.draws:
        return set(joined)
    order = torch.randperm(len(joined), generator=generator(config.seed, "server", round_, "participation"))
    return {joined[i] for i in order[: config.turnout.trained].tolist()}


def counting(config: RunConfig, asked: Collection[Task]) -> tuple[Task | None, int]:
    """Of which task's answers a quorum is needed, and how many they are.

    Args:
        config: the run.
        asked: the tasks of all messages of a step.

    Returns:
        The task, None for whatever is asked; the least number of usable answers.
    """
    return ("train", config.turnout.quorum_of_round) if "train" in asked else (None, config.turnout.quorum)
