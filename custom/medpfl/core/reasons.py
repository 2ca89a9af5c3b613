"""A reason for which a site does not answer: one object says it, and knows it again where it would leave the site.

What varies in a reason is a site's name, the name of a tensor of the run's model or of one of its mechanisms, a number
of at most six digits, or one of a few listed words. Which reasons may leave is said in :mod:`medpfl.site.words`.
"""

from __future__ import annotations

import builtins
import os
import re
from dataclasses import dataclass
from functools import cached_property

_ERRORS = {name for name, thing in vars(builtins).items() if isinstance(thing, type) and issubclass(thing, Exception)}
_ERRORS |= {"AcceleratorError", "OutOfMemoryError", "SafetensorError", "ValidationError"}
_ERRORS |= {"StateError", "TornFile", "UserError"}
MECHANISM = "[a-z][a-z0-9_-]{0,40}"
"""What a mechanism is called, as a regular expression."""
_NAME = "'([^']+)'"
_NUMBER = r"-?\d{1,6}(?:\.\d{1,6})?(?:e[-+]?\d{1,2})?"
_SHAPE = r"\[(?:\d{1,6}(?:, \d{1,6}){0,5})?\]"
_KINDS = {
    "site": r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}",
    "name": _NAME,
    "difference": f"(?:here|only here|only there) {_NAME}(?:, there {_NAME})?",
    "number": _NUMBER,
    "and more": f"(?: and {_NUMBER} more)?",
    "shape": _SHAPE,
    "number or shape": f"{_NUMBER}|{_SHAPE}",
    "dtype": r"torch\.[a-z]+\d{0,2}",
    "side": "shared|personal",
    "channel": "[a-z][a-z_]{0,40}",
    "task": "prepare|train|follow|validate|test|statistics|join",
    "error": "|".join(sorted(_ERRORS)),
    "system": "|".join(sorted({re.escape(os.strerror(code)) for code in range(1, 134)})),
    "hash": "[0-9a-f]{12}",
    "mechanism": f"({MECHANISM})",
    "hook": "loss|begin|adapts|forward|term|beside|before_step|after_step|train|end|leaving|measured|in_use|finish"
    "|card|suits",
    "method": "[a-z][a-z-]{0,40}",
    "model": "[A-Za-z0-9_:.-]{1,60}",
    "metric": "'[a-z_.0-9]{1,40}'",
}
"""What may stand in a slot, as a regular expression; its groups are names of the run's entries and mechanisms."""
_QUOTED = ("name", "metric")
_SLOT = re.compile(r"\{([^}]+)\}")


@dataclass(frozen=True)
class Reason:
    """Called with a value for each of its slots it gives what is said.

    Attributes:
        text: with slots, each of a kind, as ``{number}``, or for one of the words in it, as ``{read|write}``.
    """

    text: str

    def __call__(self, *values: object) -> str:
        """What is said; ValueError for more values than slots, or fewer."""
        pieces = _SLOT.split(self.text)
        pieces[1::2] = [_said(slot, value) for slot, value in zip(pieces[1::2], values, strict=True)]
        return "".join(pieces)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Of all that it can say; what its groups match must be names of the run's entries or mechanisms."""
        pieces = _SLOT.split(self.text)
        pieces[::2] = map(re.escape, pieces[::2])
        pieces[1::2] = (f"(?:{_expression(slot)})" for slot in pieces[1::2])
        return re.compile("".join(pieces))


def error_name(error: Exception) -> str:
    """What a slot of an error's type has: that type, or the nearest above it that is on the list."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS | {"Exception"})


def _said(slot: str, value: object) -> str:
    if slot in _QUOTED:
        return repr(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _expression(slot: str) -> str:
    return "|".join(map(re.escape, slot.split("|"))) if "|" in slot else _KINDS[slot]
