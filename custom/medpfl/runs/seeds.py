"""Which seeds a comparison is made with."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from medpfl.core.errors import UserError

Seeds = int | str | Sequence[int] | np.ndarray
_MOST, _DIGITS = 10_000, 20
_HOW = "give how many (3: seeds 0, 1 and 2), FROM..TO, or the seeds with commas between, e.g. 3..9 or 0,5,7"


def seeds_of(given: Seeds) -> tuple[int, ...]:
    """The seeds, each once.

    Args:
        given: how many from 0, as a number or text; text such as ``3..9`` or ``0,5,7``; or the seeds themselves, in an
            array too.

    Raises:
        UserError: it is none of these, or a seed is below 0 or there twice.
    """
    found = _read(given.strip()) if isinstance(given, str) else given
    found = found.tolist() if isinstance(found, np.ndarray) else found
    if _whole(found):
        found = range(int(found))
    if isinstance(found, range) and len(found[: _MOST + 1]) > _MOST:  # the length of one may be no machine's number
        raise UserError(f"seeds {given!r}: more than {_MOST:,}")
    if not isinstance(found, Sequence) or isinstance(found, str | bytes) or not found:
        raise UserError(f"seeds {given!r}: {_HOW}")
    if len(found) > _MOST:
        raise UserError(f"seeds {given!r}: more than {_MOST:,}")
    if not all(map(_whole, found)):
        raise UserError(f"seeds {given!r}: {_HOW}")
    if wrong := next((seed for seed in found if seed < 0), None):
        raise UserError(f"seeds {given!r}: {wrong} is below 0; {_HOW}")
    if len(set(found)) < len(found):
        raise UserError(f"seeds {given!r}: give each once; {_HOW}")
    return tuple(map(int, found))


def _read(text: str) -> Seeds:
    first, dots, last = text.partition("..")
    parts = [part.strip() for part in ((first, last) if dots else text.split(","))]
    if not all(part.removeprefix("-").isdecimal() and len(part) <= _DIGITS for part in parts):
        return text
    numbers = list(map(int, parts))
    if dots:
        return range(numbers[0], numbers[1] + 1)
    return numbers if len(numbers) > 1 else numbers[0]


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
