"""Code that a configuration names as ``module:name``: taken only from modules that somebody here has permitted.

A configuration may come from elsewhere. Whoever runs a command or a recipe permits what it names; at a real site the
modules are those of ``code`` in ``local/medpfl.json``, or of a job that may bring code. Nothing else is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from inspect import isclass, isroutine
from types import ModuleType
from typing import TYPE_CHECKING, Any

from medpfl.data.catalog import is_function
from medpfl.errors import UserError

if TYPE_CHECKING:
    from medpfl.config import RunConfig

_permitted: set[str] = set()
"""Modules by their whole names, for this process."""


def named_code(config: RunConfig) -> Iterator[tuple[str, str]]:
    """``data`` or ``model``, and the ``module:name`` that a configuration gives for it, where it does."""
    if is_function(config.data):
        yield "data", config.data
    if ":" in config.model and not config.model.startswith("monai:"):
        yield "model", config.model


def permit(*modules: str) -> None:
    """Permits modules by their whole names; what is in a package needs a permission of its own."""
    _permitted.update(modules)


def permit_named(config: RunConfig) -> None:
    """Permits what a configuration names: for whoever runs it here by a command or a program of their own."""
    permit(*(spec.partition(":")[0] for _, spec in named_code(config)))


def permitted_module(spec: str, what: str) -> ModuleType:
    """The module of ``module:name``, imported.

    Raises:
        UserError: nobody has permitted it.
        Exception: whatever its import raises.
    """
    module = spec.partition(":")[0]
    if module not in _permitted:
        raise UserError(
            f"{what} {spec!r}: code of {module!r}, which nobody here has permitted; a site permits it with "
            f'"code": ["{module}"] in local/medpfl.json'
        )
    return importlib.import_module(module)


def require_own(target: Any, spec: str, what: str) -> None:
    """Refuses what the module only has from elsewhere: a permitted module lends nothing that it merely imports.

    Raises:
        UserError: the class or function was made in another package.
    """
    home = target.__module__ if isclass(target) or isroutine(target) else None
    package = spec.partition(":")[0].partition(".")[0]
    if home is not None and home.partition(".")[0] != package:
        raise UserError(f"{what} {spec!r}: it is {home}'s, which {package!r} only imports")
