"""What ``--data-arg`` says of data: the names of the classes, and how they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ValidationError

from medpfl.core.errors import UserError
from medpfl.core.near import did_you_mean
from medpfl.core.plain import require_plain
from medpfl.data.files import composed

M = TypeVar("M", bound=BaseModel)


_MOST_CLASSES = 1000
"""Tables of classes by classes are made of them."""
_LISTED = re.compile(r" *-?[\d.]+( *, *-?[\d.]+)+ *")
"""Numbers with commas between them."""


def _lengths(spacing: tuple[float, float, float]) -> tuple[float, float, float]:
    if not all(length == 0 or 0.1 <= length <= 50 for length in spacing):
        raise ValueError(f"{spacing}: three lengths from 0.1 to 50 mm, or 0 to keep an axis as it is")
    return spacing


Lengths = Annotated[tuple[float, float, float], AfterValidator(_lengths)]
"""Of a voxel's edges, mm; 0 keeps an axis as it is."""


def lower_first(window: tuple[float, float], what: str) -> tuple[float, float]:
    """A window of values; ValueError unless they are finite and the lower is first. ``what`` is right, in words."""
    low, high = window
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ValueError(f"{window}: {what}")
    return window


def named_classes(data_args: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names that a job gives in ``classes``, none if it gives none; UserError if they are no names."""
    if "classes" not in data_args:
        return ()
    names = data_args["classes"]
    if isinstance(names, str) and "," in names:
        names = [name.strip() for name in names.split(",")]
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if listed and len(names) > _MOST_CLASSES:
        raise UserError(f"--data-arg classes: {len(names):,} names; {_MOST_CLASSES:,} is the most")
    if not listed or len(names) < 2 or len(set(names)) < len(names):
        raise UserError(
            f"--data-arg classes: {json.dumps(names)} is no list of at least two different names: "
            """give e.g. 'classes=no emphysema,emphysema'"""
        )
    require_plain(names, "data_args.classes")
    return tuple(map(composed, names))


def read_arguments(model: type[M], data_args: Mapping[str, Any]) -> M:
    """What ``--data-arg`` says besides ``classes``; UserError names a wrong one and lists those that there are."""
    try:
        return model(**{k: v for k, v in data_args.items() if k != "classes"})
    except ValidationError as error:
        first = error.errors()[0]
        name, known = str(first["loc"][0]), [*model.model_fields, "classes"]
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "too_long" or (first["type"] == "missing" and len(first["loc"]) > 1):
            several = len(get_args(model.model_fields[name].annotation))
            reason = f"{json.dumps(data_args[name])} has not the {several} numbers that are needed"
        if first["type"] == "tuple_type":
            reason = _without_brackets(name, data_args[name], model.model_fields[name].default)
        if first["type"] == "extra_forbidden":
            reason = f"such data have no argument of that name{did_you_mean(name, known)}"
        raise UserError(f"--data-arg {name}: {reason}; there are {', '.join(known)}") from None


def _without_brackets(name: str, given: Any, default: Any) -> str:
    """What is wrong with what should be a list of numbers, and how it is written: as it was given, or by default."""
    listed = given.replace(" ", "") if isinstance(given, str) and _LISTED.fullmatch(given) else ""
    if not listed and isinstance(default, tuple):
        listed = ",".join(f"{number:g}" for number in default)
    form = f", as in '{name}=[{listed}]'" if listed else ""
    return f"{json.dumps(given)} is no list of numbers: write it in brackets{form}"
