"""A mechanism's settings: each is defined once, with its range, its unit and the paper's symbol."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import inf
from typing import Any, get_args

from annotated_types import Gt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medpfl.core.near import did_you_mean

Value = float | int | str
_SHORT = re.compile(r"[+-]?(\.[0-9]+|[0-9]+\.)(e[+-]?[0-9]+)?", re.IGNORECASE)
"""A number that JSON does not take for one, as .5 and 5., and a preset's YAML does."""


class Settings(BaseModel):
    """The settings of one mechanism; none unless it says some. Names are those of ``--set``."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def setting(default: Value, help: str, *, symbol: str = "", name: str | None = None, **more: Any) -> Any:
    """A field of :class:`Settings`.

    Args:
        default: its value where nobody gives one.
        help: what it is, with its unit.
        symbol: the paper's name for it, where it has another here; accepted in its place.
        name: on the command line, where Python cannot have it.
        more: ``ge``, ``gt``, ``le``, ``lt``; ``at_server=True`` for what is the server's business alone; ``words`` for
            the values of a path that are no path.
    """
    extra = {key: more.pop(key) for key in ("at_server", "words") if key in more}
    return Field(default, description=help, alias=name, json_schema_extra={"symbol": symbol, **extra}, **more)


def value_of(text: str) -> Any:
    """What a command line says as a value: as JSON reads it, a number without one of its ends, else the word itself."""
    if _SHORT.fullmatch(text):
        return float(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also of numbers of thousands of digits
        return text


def named_fields(kind: type[Settings]) -> dict[str, Any]:
    """The fields by the names of ``--set``."""
    return {field.alias or name: field for name, field in kind.model_fields.items()}


def extra(field: Any, key: str) -> Any:
    """What :func:`setting` keeps beside a field."""
    return (field.json_schema_extra or {}).get(key)


def defaults(kind: type[Settings]) -> dict[str, Value]:
    """The settings' values where nobody gives any."""
    return {name: field.default for name, field in named_fields(kind).items()}


def checked(kind: type[Settings], values: Mapping[str, Value]) -> Settings:
    """Settings of these values.

    Raises:
        ValueError: one of them is out of its range: which, and what would be right.
    """
    for name, value in values.items():
        annotation = named_fields(kind)[name].annotation
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < inf
        if annotation in (int, float) and not number:
            raise ValueError(f"setting {name} must be a number, got {value!r}")
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise ValueError(f"setting {name} {_words(kind, name, first)}, got {values[name]}") from None


def _words(kind: type[Settings], name: str, error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "greater_than":
            return "must be positive" if not error["ctx"]["gt"] else f"must be above {error['ctx']['gt']:g}"
        case "greater_than_equal":
            return f"must be >= {error['ctx']['ge']:g}"
        case "less_than_equal":
            above = any(isinstance(limit, Gt) for limit in named_fields(kind)[name].metadata)
            return f"must {'be above 0 and at most' if above else 'lie between 0 and'} {error['ctx']['le']:g}"
        case "less_than":
            return f"must lie below {error['ctx']['lt']:g}"
        case "int_from_float" | "int_type":
            return "must be a whole number"
        case "literal_error":
            words = get_args(named_fields(kind)[name].annotation)
            return f"must be one of {', '.join(words)}{did_you_mean(str(error['input']).lower(), words)}"
    return error["msg"].lower()
