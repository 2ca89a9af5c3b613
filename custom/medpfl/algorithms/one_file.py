"""Methods of a module or a file that is no installed package, by ``module:NAME`` or ``FILE.py:NAME``: to try them out.

This process and those that it starts (FLARE's simulator, POC) have them. A real site has what is installed there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError, first_line
from medpfl.core.near import did_you_mean

VARIABLE = "MEDPFL_METHODS"
"""Of the environment: the ``module:NAME`` of these methods, with commas between."""


def parted(text: str, known: Collection[str]) -> tuple[str, str] | None:
    """``module:NAME`` and what follows it, as a variant's settings; None for a method's name, with settings or without.

    Args:
        text: as a user gives it, ``module:NAME`` or ``FILE.py:NAME``, and perhaps ``:KEY=VALUE``.
        known: names of methods.
    """
    head, _, tail = text.partition(":")
    name, colon, rest = tail.partition(":")
    spec = f"{head}:{name}"
    if not head or not name.isidentifier() or (head in known and spec not in remembered()):
        return None
    return spec, colon + rest


def found(spec: str, known: Collection[str]) -> tuple[str, Any]:
    """The ``module:NAME`` of a method that can be imported by it from now on, and what it names.

    The folder of a file goes in front of the import path, of this process and of those that it starts.

    Args:
        spec: of :func:`parted`.
        known: names of methods, for what may have been meant.

    Raises:
        UserError: there is no such file, module or name, or it cannot be imported.
    """
    head, _, name = spec.rpartition(":")
    if head.endswith(".py"):
        file = Path(head)
        if not file.is_file():
            raise UserError(f"algorithm {spec!r}: there is no file {head}")
        folder, head = str(file.resolve().parent), file.stem
        if sys.path[:1] != [folder]:
            sys.path.insert(0, folder)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    try:
        return f"{head}:{name}", _named(head, name)
    except ModuleNotFoundError as error:
        meant = did_you_mean(head, known) if error.name == head else ""
        raise UserError(f"algorithm {spec!r}: no module {error.name!r} can be imported{meant}") from None
    except AttributeError:
        raise UserError(f"algorithm {spec!r}: module {head!r} has no {name!r}") from None
    except Exception as error:  # what somebody else's file raises
        raise UserError(
            f"algorithm {spec!r} cannot be loaded: {type(error).__name__}: {first_line(error)}; mend that file"
        ) from error


def remembered() -> list[str]:
    """The ``module:NAME`` of all methods that have been taken up so."""
    return [spec for spec in os.environ.get(VARIABLE, "").split(",") if spec]


def remember(specs: Collection[str]) -> None:
    """For this process, and for those that it starts."""
    os.environ[VARIABLE] = ",".join(specs)


def loaded() -> Iterator[tuple[str, str, Any]]:
    """Of each of them its name, the ``module:NAME``, and what it names.

    Raises:
        UserError: see :func:`found`.
    """
    for spec in remembered():
        _, method = found(spec, ())
        yield getattr(method, "name", spec), spec, method


def where(method: Any) -> str:
    """``module:NAME`` of an object that a module has at its top level; empty if none has it."""
    for module, content in list(sys.modules.items()):
        for name, value in list(getattr(content, "__dict__", {}).items()):
            if value is method:
                return f"{module}:{name}"
    return ""


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
