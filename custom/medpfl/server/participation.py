"""Who trains in a round, and how many must answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from medpfl.config.run import RunConfig
from medpfl.core.messages import Task
from medpfl.core.seeding import generator

_IN_A_ROW = 3
"""That many rounds in which nobody who was drawn could train end a run: that is no absence of some."""


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


def passed_over(config: RunConfig, history: Sequence[Mapping[str, Any]], trained: int, followed: int) -> bool:
    """Whether a round goes by without a mix, since too few of those who were drawn gave a usable answer.

    Others are drawn for the next one. A round of all sites has no others, and ends the run; so does one in which of all
    sites fewer than the quorum answer, and the last of three in a row in which none of the drawn do.

    Args:
        config: the run.
        history: the rounds before.
        trained: usable answers of those who were asked to train.
        followed: of the others.
    """
    turnout = config.turnout
    if trained >= turnout.quorum_of_round or trained + followed < turnout.quorum:
        return False
    before = history[-(_IN_A_ROW - 1) :]
    return trained > 0 or len(before) < _IN_A_ROW - 1 or any(r["participants"] or r["unused"] for r in before)
