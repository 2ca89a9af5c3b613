"""Runs of a comparison or a sweep that ended early: what was asked for and stands in no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Unfinished = Mapping[str, Any]
"""``run`` (its folder's name), ``seed`` and ``why``; a part of comparison.json and sweep.json."""


def unfinished_words(found: Sequence[Unfinished]) -> str:
    """Sentences for under a table, none where all ended; a method is in it with all seeds or not at all."""
    if not found:
        return ""
    runs = ", ".join(f"{of['run']} with seed {of['seed']}" for of in found)
    them = (
        "it is in no figure here, nor are the method's other seeds"
        if len(found) == 1
        else ("they are in no figure here, nor are their methods' other seeds")
    )
    first = found[0]
    return f"Ended early: {runs}; {them}. {first['run']}, seed {first['seed']}: {first['why']}."
