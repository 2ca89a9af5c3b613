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
    name, seed, why = (found[0][key] for key in ("run", "seed", "why"))
    named = "What is named so has no figures here, with no seed"
    return f"Ended early: {runs}. {named}. {name}, seed {seed}: {why.rstrip('.')}."
