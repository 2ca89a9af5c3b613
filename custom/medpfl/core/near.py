"""What a word that is not known may have been meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`` (did you mean adam?)``, to stand behind the word in a message; empty where no known one is near.

    Args:
        word: as it was given.
        known: what it might have been.
        cutoff: how near, from 0 to 1 for the same (:func:`difflib.get_close_matches`).
    """
    near = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {near[0]}?)" if near else ""
