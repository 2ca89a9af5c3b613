"""Functions and classes that a program hands over, by names under which its run finds them again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from medpfl.algorithms import algorithms
from medpfl.algorithms.base import Algorithm
from medpfl.core import one_file
from medpfl.core.errors import UserError


def spec_of(thing: Callable[..., Any], what: str, *, elsewhere: bool) -> str:
    """``module:name`` of a function or class; a notebook's and a script's own are of the module ``__main__``.

    Args:
        thing: the function or class.
        what: ``model`` or ``data``, for messages.
        elsewhere: processes of their own are to find it too, which a notebook's or a script's they cannot.

    Raises:
        UserError: it has no such name: it is a lambda, was made in a function, or is an object.
    """
    name, module = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", "")
    if not name:
        hint = "its class" if what == "model" else "a function and, by data_args, its arguments"
        raise UserError(f"{what}={type(thing).__name__}(...): give {hint}: every site calls it by its name")
    if getattr(sys.modules.get(module), name, None) is not thing:
        raise UserError(
            f"{what}={name}: sites call it by its name, and {module} has none such at its top level: define it there "
            "by def or class, or in a module"
        )
    return _findable_spec(f"{module}:{name}", f"{what}={name}", elsewhere)


def method_spec(method: Algorithm, *, elsewhere: bool) -> str:
    """A known method's name, or ``module:NAME`` of one's own.

    Args:
        method: an object that a module has at its top level.
        elsewhere: see :func:`spec_of`.

    Raises:
        UserError: no module has it, or other processes could not import it.
    """
    if any(method is known for known in algorithms().values()):
        return method.name
    if not (spec := one_file.where(method)):
        raise UserError(
            f"{method.name}: sites find a method by its name, and no module has this one at its top level; give it a "
            "name there"
        )
    return _findable_spec(spec, method.name, elsewhere)


def _findable_spec(spec: str, what: str, elsewhere: bool) -> str:
    if elsewhere and one_file.is_a_sessions(spec):
        raise UserError(
            f"{what} is this session's own, and the sites of FLARE are processes of their own: put it into a file, "
            'import it from there, or use env="inprocess"'
        )
    return spec
