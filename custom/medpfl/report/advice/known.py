"""Of which tasks our benchmarks can tell anything."""

from __future__ import annotations

KNOWN = "accuracy"
"""What was measured."""


class OtherTask(Exception):
    """A task that is not judged by what our benchmarks measured, in words."""


def require_known(task: str | None, first: str) -> None:
    """OtherTask if a task's first measure is not what was measured."""
    if first != KNOWN:
        raise OtherTask(
            f"There is no advice for {task}: our benchmarks are of classification, by its accuracy, and say nothing of "
            "this task. What taking part is worth at your sites, medpfl compare says in a simulation, and a run "
            "itself, in which each site trains alone too."
        )
