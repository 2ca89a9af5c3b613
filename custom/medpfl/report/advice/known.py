"""Of which tasks our benchmarks can tell anything."""

from __future__ import annotations

from typing import Literal

Measure = Literal["accuracy", "dice"]
"""What was measured, on test cases."""
IN_WORDS: dict[Measure, str] = {"accuracy": "accuracy", "dice": "Dice"}
_MEASURES: dict[str, Measure] = {"classification": "accuracy", "segmentation": "dice"}


class OtherTask(Exception):
    """A task that no benchmark is of, in words."""


def measured(task: str) -> Measure:
    """What was measured of a task; OtherTask if no benchmark is of it."""
    if task not in _MEASURES:
        raise OtherTask(
            f"There is no advice for {task}: our benchmarks are of classification, by its accuracy, and of "
            "segmentation, by Dice, and say nothing of this task. What taking part is worth at your sites, medpfl "
            "compare says in a simulation, and a run itself, in which each site trains alone too."
        )
    return _MEASURES[task]
