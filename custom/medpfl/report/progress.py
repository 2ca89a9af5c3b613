"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from medpfl.core.errors import printable
from medpfl.engine.progress import Progress as Moment
from medpfl.engine.progress import Watch

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

_TESTING = "testing"
_COUNTED = ("train", "test", "join")
"""Phases of which the sites that have answered move the bar."""
_SECONDS = 10
"""Between two lines of a step, at least."""
_PHASES = {
    "submitted": "waiting for FLARE to start the job",
    "simulator": "starting FLARE's simulator",
    "unreachable": "no answer from FLARE's server",
    "prepare": "preparing sites",
    "train": "training",
    "validate": "validating the last round",
    "done": "done",
    "join": "new sites adapt",
}


def progress_of(console: Console, title: str, config: RunConfig) -> AbstractContextManager[Watch]:
    """Shows the progress of a run with these options; its end is called by what sites do there."""
    return progress(console, title, config.rounds, ending(config))


def ending(config: RunConfig) -> str:
    """What sites do after the last round, which may take as long as several: testing at least."""
    before = ["training further"] if config.further else []
    before += ["choosing"] if config.resolved_use != "received" else []
    return " and ".join(filter(None, (", ".join(before), _TESTING)))


@contextmanager
def progress(console: Console, title: str, rounds: int, end: str = _TESTING) -> Iterator[Watch]:
    """Shows a run's progress while the block runs; yields what the engine tells.

    Args:
        console: where.
        title: of the run.
        rounds: how many it has.
        end: what its phase ``test`` is called.
    """
    phases = _PHASES | {"test": end}
    if not console.is_terminal:
        yield _lines(console, title, rounds, phases, f", then {end}" if end != _TESTING else "")
        return
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(f"round {{task.fields[round]}}/{rounds}"),
    ]
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        # What follows the rounds counts as one more: else the time would stand still and none be left.
        task = bar.add_task(f"{title}: starting", total=rounds + 1, round=0)

        def watch(now: Moment) -> None:
            done = now.round + (now.answered / now.expected if now.phase in _COUNTED and now.expected else 0)
            description = f"{title}: {phases[now.phase]}{_more(now)}"
            bar.update(task, completed=done, round=now.round, description=description)

        yield watch


def _more(now: Moment) -> str:
    return f": {printable(now.note)}" if now.note else f", {now.answered}/{now.expected} sites" if now.expected else ""


def _lines(console: Console, title: str, rounds: int, phases: Mapping[str, str], end: str) -> Watch:
    started = last = time.monotonic()
    said = set[tuple[str, int, str]]()

    def watch(now: Moment) -> None:
        nonlocal started, last
        moment = time.monotonic()
        if not (now.round or any(phase == "train" for phase, *_ in said)):
            started = moment  # what rounds take is counted from where the first is seen to begin
        begins = (now.phase, now.round, now.note) not in said
        if not begins and not (now.answered and moment - last >= _SECONDS):
            return
        said.add((now.phase, now.round, now.note))
        if now.phase != "train" or now.note or not begins:
            under_way = now.phase == "train" and not now.note
            what = f"round {now.round + 1}/{rounds}" if under_way else phases[now.phase]
            words = f"{title}: {what}{_more(now) if now.answered or now.note else ''}"
        elif now.round:
            spent = moment - started
            left = spent / now.round * (rounds - now.round)
            after = end if now.round == 1 else ""
            words = f"{title}: round {now.round}/{rounds}, {spent:.0f} s, about {left:.0f} s to the last{after}"
        else:
            return
        last = moment
        console.print(words, highlight=False, markup=False, soft_wrap=True)

    return watch
