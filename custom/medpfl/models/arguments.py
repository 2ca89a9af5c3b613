"""Arguments for a network's constructor: what its signature asks for and the data know, and what the user gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, get_type_hints

from medpfl.core.errors import UserError
from medpfl.core.near import did_you_mean

_PLAIN = (bool, int, float, str, type(None))
_WORD = re.compile(r"[A-Za-z0-9_+ -]{0,64}")
"""What a network may be told in letters: nothing that could be a path, an address, a dotted name or an expression."""
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def call_arguments(
    target: Callable[..., Any], name: str, known: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword arguments with which to call a class or a factory.

    Args:
        target: what is called.
        name: what the user calls it, for messages.
        known: values by argument name; those that the target has no argument for are left out.
        given: the user's own, which outweigh the known ones.

    Raises:
        UserError: an argument that the target does not have, or one that it needs and nobody gives.
    """
    accepted, open_ended = accepted_arguments(target, known)
    for key in given:
        if key not in accepted and not open_ended:
            hint = did_you_mean(key, accepted, cutoff=0.7)
            raise UserError(f"{name} has no model argument {key!r}{hint}; it accepts: {', '.join(accepted) or 'none'}")
    arguments = {key: value for key, value in known.items() if key in accepted} | dict(given)
    missing = [key for key, parameter in accepted.items() if parameter.default is Parameter.empty]
    if missing := [key for key in missing if key not in arguments]:
        raise UserError(f"{name} also needs the model argument{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return arguments


def check_plain(value: Any, name: str) -> None:
    """Refuses arguments that are no numbers, strings, booleans, None, or lists and objects of these.

    Raises:
        UserError: what is none, by its type.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_plain(key, name)
            check_plain(part, name)
    elif isinstance(value, list | tuple):
        for part in value:
            check_plain(part, name)
    elif type(value) not in _PLAIN:
        raise UserError(f"{name}: model arguments are numbers, words, true, false, null and lists, not {value!r}")


def check_words(value: Any, name: str) -> None:
    """Refuses strings that a network could turn into a file, an address or code; ``value`` is plain.

    Raises:
        UserError: the string.
    """
    if isinstance(value, Mapping):
        check_words([*value, *value.values()], name)
    elif isinstance(value, list | tuple):
        for part in value:
            check_words(part, name)
    elif isinstance(value, str) and not _WORD.fullmatch(value):
        raise UserError(f"{name}: the model argument {value[:80]!r} is no word: letters, digits, _ + - and spaces")


def accepted_arguments(target: Callable[..., Any], known: Mapping[str, Any]) -> tuple[dict[str, Parameter], bool]:
    """The named arguments of a class or factory, and whether it may take others that its signature does not name.

    ``**kwargs`` are followed to the base class, or from a factory to the class that it returns. What these require
    and the data do not know is supplied by the caller in between (``block`` in MONAI's ``resnet18``).
    """
    accepted: dict[str, Parameter] = {}
    for step, function in enumerate(_calls(target)):
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # Written in C, without a signature.
            return accepted, True
        for parameter in parameters:
            supplied = step > 0 and parameter.default is Parameter.empty and parameter.name not in known
            if parameter.kind in _NAMED and parameter.name != "self" and not supplied:
                accepted.setdefault(parameter.name, parameter)
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            return accepted, False
    return accepted, True


def product(target: Any) -> type | None:
    """The class that a call gives: the class itself, or what a function's annotation says; None if it says nothing."""
    if inspect.isclass(target):
        return target
    try:
        hint = get_type_hints(target).get("return")
    except (NameError, TypeError, AttributeError):  # No function, or annotations for type checkers only.
        return None
    return hint if inspect.isclass(hint) else None


def _calls(target: Callable[..., Any]) -> list[Callable[..., Any]]:
    made = product(target)
    own = [cls.__dict__["__init__"] for cls in made.__mro__[:-1] if "__init__" in cls.__dict__] if made else []
    return own if inspect.isclass(target) else [target, *own]
