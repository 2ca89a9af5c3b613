"""What is learned: labels, loss, predictions, measures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from medpfl.core.errors import UserError
from medpfl.core.installed import installed
from medpfl.core.measure import Measure
from medpfl.tasks.classification import Classification
from medpfl.tasks.multi_label import MultiLabel
from medpfl.tasks.ordinal import Ordinal
from medpfl.tasks.segmentation.task import Segmentation
from medpfl.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (Classification(), MultiLabel(), Ordinal(), Segmentation())}
"""This package's, by name."""
GROUP = "medpfl.tasks"
"""Entry points of other packages: each a :class:`~medpfl.tasks.task.Task`."""

__all__ = ["TASKS", "Measure", "Task", "tasks"]


def tasks() -> Mapping[str, Task]:
    """All tasks by name, this package's first; UserError if another package's cannot be loaded or is none."""
    return {**_installed(), **TASKS}


@cache
def _installed() -> Mapping[str, Task]:
    found = {}
    for _, where, task in installed(GROUP):
        if not isinstance(task, Task):
            raise UserError(f"{where}: it must be a medpfl Task, not {type(task).__name__}")
        found[task.name] = task
    return found
