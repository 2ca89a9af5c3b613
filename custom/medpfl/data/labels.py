"""What a sample is labelled with: one class, or several labels, each there, not there or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

Target = int | tuple[int, ...]
"""The number of a class; or for each class 1 if it is there, 0 if it is not, -1 if that is not known."""
NOT_KNOWN = -1


def present(target: Target) -> list[int]:
    """The classes that a sample has, as far as known."""
    return [target] if isinstance(target, int) else [number for number, there in enumerate(target) if there == 1]


def counts(targets: Iterable[Target], classes: int) -> list[int]:
    """How many samples have each class."""
    found = [0] * classes
    for target in targets:
        for number in present(target):
            found[number] += 1
    return found


def known_counts(targets: Iterable[Target], classes: int) -> list[int]:
    """Of how many samples it is known whether they have each class."""
    found = [0] * classes
    for target in targets:
        for number in range(classes):
            found[number] += isinstance(target, int) or target[number] != NOT_KNOWN
    return found


def counted(targets: Sequence[Target], classes: Sequence[str], noun: str) -> str:
    """How many samples have which class, in words; of several labels also how many have none, or are not known."""
    there, known = counts(targets, len(classes)), known_counts(targets, len(classes))
    of = [f" of {n:,} known" if n < len(targets) else "" for n in known]
    line = ", ".join(f"{name} {n:,}{some}" for name, n, some in zip(classes, there, of, strict=True))
    without = sum(not present(target) for target in targets)
    return line + (f"; {count(without, noun)} with none of them" if without else "")


def strata(targets: Sequence[Target], classes: int) -> list[int]:
    """By what samples are divided: the class; of several labels the rarest there is, or their number if none is."""
    frequent = counts(targets, classes)
    return [min(present(target), key=lambda c: (frequent[c], c), default=classes) for target in targets]


def in_words(target: Target, classes: Sequence[str]) -> str:
    """The names of what a sample has."""
    return " + ".join(classes[number] for number in present(target)) or "no label"


def require_fit(config: RunConfig, several: bool, root: Path, noun: str) -> None:
    """UserError if a run's task needs one class a sample and data have several labels, or the other way round."""
    if several != (config.learned.labels == "labels"):
        have = f"several labels a {noun}" if several else f"one class a {noun}"
        raise UserError(f"{root}: its tables or folders say {have}; --task {config.task} needs another")
