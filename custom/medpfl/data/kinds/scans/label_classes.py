"""Which classes the labels of tables make, and which of them a label means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.plain import plain_problem


def class_number(label: str, classes: Sequence[str]) -> int | None:
    """Index of a label that is a class's name or else its number; None if it is neither.

    Where a class is itself called by a number, a label is a name: of the grades 1 to 4 the label 0 is none.
    """
    if label in classes:
        return list(classes).index(label)
    if any(map(is_number, classes)):
        return None
    return int(label) if is_number(label) and int(label) < len(classes) else None


def is_number(label: str) -> bool:
    """Whether a label can be a class's number; Python reads no number of thousands of digits."""
    return label.isdecimal() and len(label) <= 9


def classes_of(root: Path, named: Sequence[tuple[str, str]], noun: str, remedy: str) -> tuple[str, ...]:
    """The classes that labels make: their names, sorted, or all numbers from 0 to the highest.

    Args:
        root: the data's folder, for messages.
        named: each label that a row of any centre names, and where.
        noun: what is labelled.
        remedy: what else says the classes.

    Raises:
        UserError: fewer than two, a stray number, or two names that differ in case or spaces alone.
    """
    alike: dict[str, tuple[str, str]] = {}
    for label, where in named:
        first, there = alike.setdefault("".join(label.casefold().split()), (label, where))
        if first != label:
            raise UserError(
                f"{where}: label {label!r} differs in case or spaces alone from {first!r} ({there}): without {remedy} "
                "they would be two classes; write it in one way"
            )
    labels = [first for first, _ in alike.values()]
    if labels and all(map(is_number, labels)):
        highest = max(map(int, labels))
        # One stray number must not make a billion classes.
        if highest >= max(10, len(named)):
            raise UserError(f"{root}: has the label {highest}, but fewer {noun}; labels are the classes 0, 1, 2, ...")
        names = [str(number) for number in range(highest + 1)]
    else:
        names = sorted(set(labels))
    if len(names) < 2:
        found = f"all {noun} have the label {names[0]!r}" if names else f"no {noun.removesuffix('s')} has a label"
        raise UserError(f"{root}: {found}; two classes are needed, or {remedy}")
    if problem := plain_problem(names, "classes"):
        raise UserError(f"{root}: {problem}")
    return tuple(names)
