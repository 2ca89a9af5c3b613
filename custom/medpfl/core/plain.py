"""What may stand in a MONAI bundle besides our own constants: plain values that MONAI's parser leaves as they are.

``monai.bundle.ConfigParser`` (1.6) evaluates a text that begins with ``$``, replaces one that begins with ``@`` (a
reference) or ``%`` (a macro: another item, or a file), takes ``@::`` and ``%::`` anywhere in a text for the beginning
of a relative path and writes every ``#`` as ``::``. A dictionary with the key ``_target_`` is called; ``_requires_``,
``_disabled_``, ``_mode_``, ``_desc_`` and ``_debug_`` mean something too, ``+`` before a key merges, and ``::`` or
``#`` in it is a path. It does so in ``inference.json`` and in ``metadata.json``, which it reads as ``_meta_``.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

from medpfl.core.errors import UserError

LONGEST = 200
"""Characters of a text."""

_LARGEST = 2**63
_DEEPEST = 16
_LEADING = {"$": "code", "@": "a reference", "%": "another file or item"}
_KEY = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]{0,98}[A-Za-z0-9])?")


def require_plain(value: Any, field: str) -> None:
    """UserError with the words of :func:`plain_problem`, if it has any."""
    if problem := plain_problem(value, field):
        raise UserError(problem)


def require_json(value: Any, what: str) -> None:
    """UserError, which says what it is, for what a file of JSON cannot hold: it would be found when that is written."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{what}: {error}; use finite numbers, text, lists and dictionaries") from None


def plain_problem(value: Any, field: str) -> str | None:
    """Why a value may not stand in a bundle, with the name of the entry; None if it may.

    Plain are None, booleans, finite numbers, printable text that MONAI takes for nothing but text, and lists and
    dictionaries of these whose keys are ASCII names.

    Args:
        value: of a configuration or a card; lists and dictionaries are looked into.
        field: its name; of what it holds it becomes ``classes[1]`` or ``model_args.act[1].inplace``.
    """
    return _problem(value, field, 0)


def _problem(value: Any, field: str, depth: int) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _text_problem(value, field)
    if isinstance(value, int | float):
        return _number_problem(value, field)
    if not isinstance(value, list | tuple | dict):
        return f"{field}: {type(value).__name__} is no plain value; use numbers, text, lists and dictionaries"
    if depth == _DEEPEST:
        return f"{field}: lists and dictionaries in more than {_DEEPEST} levels; use fewer"
    if isinstance(value, dict):
        if odd := [key for key in value if not (isinstance(key, str) and _KEY.fullmatch(key))]:
            return (
                f"{field}: the key {_short(odd[0])} may mean something to MONAI's bundles; use letters, digits and _, "
                "a letter first and no _ last"
            )
        inside = ((f"{field}.{key}", item) for key, item in value.items())
    else:
        inside = ((f"{field}[{index}]", item) for index, item in enumerate(value))
    return next(filter(None, (_problem(item, name, depth + 1) for name, item in inside)), None)


def _text_problem(text: str, field: str) -> str | None:
    if len(text) > LONGEST:
        return f"{field}: {_short(text)} has {len(text)} characters; at most {LONGEST} are allowed"
    if not text.isprintable():
        return f"{field}: {_short(text)} has line breaks or other characters that are not printed; leave them out"
    if text[:1] in _LEADING:
        return f"{field}: {_short(text)} begins with {text[0]!r}, which MONAI's bundles take for {_LEADING[text[0]]}"
    if mark := next((mark for mark in ("#", "::") if mark in text), None):
        return f"{field}: {_short(text)} has {mark!r}, which MONAI's bundles take for a path; write it otherwise"
    return None


def _number_problem(number: int | float, field: str) -> str | None:
    if isinstance(number, float):
        return None if isfinite(number) else f"{field}: {number} is no finite number"
    # Not shown: one of 5,000 digits cannot even be written.
    return None if abs(number) < _LARGEST else f"{field}: a whole number beyond 63 bits; use a smaller one"


def _short(value: Any) -> str:
    """For a message: on one line, and not longer than that."""
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    return repr(value[:40]) + "..." * (len(value) > 40)
