"""Says in words whether data can be used, before any training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from medpfl.data.finding import Finding
from medpfl.data.kinds.registry import absent, kind_of


def check(name_or_path: str | Path, data_args: Mapping[str, Any] | None = None) -> list[Finding]:
    """Reads data of any kind and looks for what would spoil a result; never raises for data that are wrong.

    Args:
        name_or_path: the data.
        data_args: as a run has them; what a job says of its data, they must be.

    Raises:
        UserError: an argument that such data do not have, or a wrong value of one.
    """
    data = str(name_or_path)
    if wrong := absent(data):
        return [Finding("error", wrong)]
    return kind_of(data, {}).check(data, data_args or {})


def check_deep(
    name_or_path: str | Path,
    page: Path,
    data_args: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """:func:`check`, and every scan decoded as training would, into the cache.

    Args:
        name_or_path: the data.
        page: the HTML file to write, with the slices that training will see.
        data_args: as a run has them.
        progress: called with how many files or scans are read, and of how many.

    Raises:
        UserError: see :func:`check`; the data are no scans; or the page cannot be written.
    """
    data = str(name_or_path)
    if wrong := absent(data):
        return [Finding("error", wrong)]
    kind = kind_of(data, {})
    found = [] if kind.is_here(data) else kind.check(data, data_args or {})
    if any(finding.level == "error" for finding in found):
        return found
    return kind.check_deep(data, data_args or {}, page, progress)
