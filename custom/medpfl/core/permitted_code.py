"""Code of others: taken only from modules that somebody here has permitted. Nothing else is imported."""

from __future__ import annotations

import importlib
from inspect import isclass, isroutine
from types import ModuleType
from typing import Any

from medpfl.core.errors import UserError

_permitted: set[str] = set()
"""Modules by their whole names, for this process."""


def permit(*modules: str) -> None:
    """Permits modules by their whole names; what is in a package needs a permission of its own."""
    _permitted.update(modules)


def permitted_module(spec: str, what: str) -> ModuleType:
    """The module of ``module:name``, imported.

    Raises:
        UserError: nobody has permitted it, or it is a file's name.
        Exception: whatever its import raises.
    """
    module, _, name = spec.partition(":")
    if module.endswith(".py"):
        raise UserError(f"{what} {spec!r}: give the module, not its file: {module.removesuffix('.py')}:{name}")
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


def is_function(data: str) -> bool:
    """Whether a ``--data`` value is ``module:function``."""
    return ":" in data and "/" not in data and "\\" not in data
