"""Replay: what a site answers that no honest run asks.

A server that has lost its last step asks a task again with what it sent before, and gets the same answer: that is no
leak. Everything else here is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from medpfl.audit.victim import Known, Line, hello, honest_rounds
from medpfl.core.messages import Message, Update
from medpfl.core.parameters import State
from medpfl.core.seeding import generator


@dataclass(frozen=True)
class Replayed:
    """One kind of question.

    Attributes:
        what: in words.
        asked: how often.
        answered: how often the site answered with something new.
        allowed: how often the policy lets it.
    """

    what: str
    asked: int
    answered: int
    allowed: int = 0


def replay(line: Line, known: Known, times: int = 10) -> list[Replayed]:
    """Asks what an honest server does not ask, each kind in a run of its own after two honest rounds."""
    repeats, rounds = known.policy.repeats, known.config.rounds
    found = []

    def play(what: str, allowed: int, *messages: Message) -> None:
        honest = honest_rounds(line, known, 2)
        if len(honest) < min(2, rounds):
            return
        fresh = sum(_is_new(line.ask(message), [e.update for e in honest]) for message in messages)
        found.append(Replayed(what, len(messages), fresh, allowed))

    others = [_moved(known, known.initial_shared, number) for number in range(times)]
    last = min(2, rounds)
    play("the last round again, with other weights", repeats, *(Message("train", last, o, {}) for o in others))
    play("a round that was passed, with other weights", repeats, *(Message("train", 1, o, {}) for o in others))
    # A site may have missed rounds; each of those that were agreed is answered once all the same.
    ahead = [Message("train", last + 2, o, {}) for o in others]
    play("a round ahead of its turn, again and again", 1 + repeats, *ahead)
    play("a round after the agreed end", 0, *(Message("train", rounds + 1 + n, o, {}) for n, o in enumerate(others)))
    measures = [Message("validate", rounds, o, {"best_round": 0}) for o in others]
    play("the measures of other weights", 1 + repeats, *measures)
    play(
        "the measures of a round that was not trained",
        0,
        *(Message("validate", rounds + 1, o, {"best_round": 0}) for o in others),
    )
    if known.config.turnout.draws:
        follow = [Message("follow", last, o, {"best_round": 0}) for o in others]
        play("the measures of other weights, in a round that was trained", repeats, *follow)
    if known.f is not None:
        strange = [_moved(known, known.f, number) for number in range(times)]
        play("statistics under another f", 1 + repeats, *(hello(known, f) for f in strange))
    unlike = replace(hello(known), info={**hello(known).info, "split": ["another"]})
    play("a greeting of another contract", 0, unlike)
    return found


def _is_new(update: Update | None, before: list[Update]) -> bool:
    """Whether it is an answer, and holds anything that the site had not said."""
    if update is None:
        return False
    return not any(
        b.tensors.keys() == update.tensors.keys()
        and all(torch.equal(b.tensors[k], update.tensors[k]) for k in update.tensors)
        and dict(b.metrics) == dict(update.metrics)
        for b in before
    )


def _moved(known: Known, state: State, number: int) -> State:
    """The state with one per cent of noise, as small a change as a harmless one could be."""
    draw = generator(known.config.seed, "audit", "replay", str(number))
    return {
        name: tensor + 0.01 * tensor.abs().mean() * torch.randn(tensor.shape, generator=draw)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in state.items()
    }
