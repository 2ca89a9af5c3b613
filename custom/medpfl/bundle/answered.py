"""How a bundle's command goes on and ends: what cannot be used costs the rest nothing, and an error is one line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from medpfl.core.errors import UserError, printable, printably, user_error_in

T = TypeVar("T")

logger = logging.getLogger(__name__)
logger.addFilter(printably)

PROBLEM = "problem"
"""In an item that cannot be used: why."""


def in_one_line(function: Callable[..., T]) -> Callable[..., T]:
    """Ends MONAI's command with what the user can put right; in any other program the error goes its way.

    MONAI wraps every exception that a configuration raises, and its command prints them all as tracebacks.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not _in_monais_command() or (cause := user_error_in(error)) is None:
                raise
            sys.exit(printable(f"medpfl: {cause}"))

    return call


def each(items: Sequence[dict[str, Any]], answer: Callable[[int], dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The answers to all items that can be used.

    Args:
        items: of :func:`medpfl.bundle.inference.items`.
        answer: to the item of a number.

    Returns:
        ``results``, and, where there are any, ``left_out``: the ``name`` of each item that cannot be used, and ``why``.

    Raises:
        UserError: none can be used.
    """
    results: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        try:
            if why := item.get(PROBLEM):
                raise UserError(why)
            results.append(answer(number))
        except Exception as error:
            if (cause := user_error_in(error)) is None:
                raise
            left_out.append({"name": item["name"], "why": str(cause)})
    if not results:
        others = len(left_out) - 1
        raise UserError(left_out[0]["why"] + (f"\n{others:,} more cannot be used either" if others else ""))
    for item in left_out:
        logger.warning("left out: %s", item["why"])
    return {"results": results} | ({"left_out": left_out} if left_out else {})


def end(found: dict[str, list[dict[str, Any]]]) -> None:
    """Ends MONAI's command with 1 where something was left out, so that a script that calls it learns of it."""
    if (left_out := found.get("left_out")) and _in_monais_command():
        number = len(left_out) + len(found["results"])
        sys.exit(f"medpfl: {len(left_out):,} of {number:,} were left out; left_out in the answer says which, and why")


def _in_monais_command() -> bool:
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name == "monai.bundle.__main__"
