"""What a module or a file has that is no installed package, by ``module:NAME`` or ``FILE.py:NAME``: to try it out.

This process and those that it starts (FLARE's simulator, POC) have them. A real site has what is installed there.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError, first_line
from medpfl.core.home import at_home
from medpfl.core.near import did_you_mean

VARIABLE = "MEDPFL_METHODS"
"""Of the environment: the ``module:NAME`` of these methods, with commas between."""

_of_the_session: list[str] = []
_of_files: set[str] = set()
"""Modules that files were taken for, in this process."""


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


def found(spec: str, known: Collection[str], what: str = "algorithm") -> tuple[str, Any]:
    """The ``module:NAME`` of what can be imported by it from now on, and what it names.

    The folder of a file comes last in the import path, of this process and of those that it starts.

    Args:
        spec: of :func:`parted`.
        known: names, of methods or of none, for what may have been meant.
        what: what it is to be, for messages.

    Raises:
        UserError: there is no such file, module or name, or it cannot be imported.
    """
    head, _, name = spec.rpartition(":")
    file = at_home(head).resolve() if head.endswith(".py") else None
    if file:
        head = _importable(file, f"{what} {spec!r}")
    try:
        module = importlib.import_module(head)
    except ModuleNotFoundError as error:
        meant = did_you_mean(head, known) if error.name == head else ""
        raise UserError(f"{what} {spec!r}: no module {error.name!r} can be imported{meant}") from None
    except (Exception, SystemExit) as error:  # what somebody else's file raises
        raise UserError(
            f"{what} {spec!r} cannot be loaded: {type(error).__name__}: {first_line(error)}; mend that file"
        ) from error
    if file and Path(its := getattr(module, "__file__", None) or "").resolve() != file:
        raise UserError(
            f"{what} {spec!r}: there is another module {head!r} here, {its or 'of Python itself'}; give the file "
            "another name, or begin a new session"
        )
    if not hasattr(module, name):
        raise UserError(f"{what} {spec!r}: module {head!r} has no {name!r}{did_you_mean(name, vars(module))}")
    if file:
        _of_files.add(head)
    return f"{head}:{name}", getattr(module, name)


def by_module(text: str | None, what: str) -> str | None:
    """``module:NAME`` of a network or of data given as ``FILE.py:NAME``, importable from now on; else what is given.

    Args:
        text: as a user gives it.
        what: ``model`` or ``data``, for messages.

    Raises:
        UserError: see :func:`found`, or it is a file without a name.
    """
    if not isinstance(text, str):
        return text
    if text.endswith(".py") and at_home(text).is_file():
        kind = "a network's class" if what == "model" else "a function that gives a site's data"
        raise UserError(f"{what} {text!r}: say what of the file, {text}:NAME, {kind}")
    return found(text, (), what)[0] if is_of_a_file(text) else text


def is_of_a_file(text: str) -> bool:
    """Whether it is ``FILE.py:NAME``."""
    head, _, name = text.rpartition(":")
    return head.endswith(".py") and name.isidentifier()


def as_a_file(spec: str, error: Exception) -> str:
    """For a message that a module is not there: how its file is named, where one of that name lies here; else empty.

    Args:
        spec: ``module:name``.
        error: of the import, which may be about another module.
    """
    module, _, name = spec.partition(":")
    here = getattr(error, "name", "") == module and Path(f"{module}.py").is_file()
    return f"; of the file that lies here give {module}.py:{name}" if here else ""


def modules() -> set[str]:
    """Modules of all methods that have been taken up so, and of files."""
    return {spec.partition(":")[0] for spec in remembered()} | _of_files


def remembered() -> list[str]:
    """The ``module:NAME`` of all methods that have been taken up so and are there; a session's own may be gone."""
    own = [spec for spec in _of_the_session if hasattr(sys.modules[spec.partition(":")[0]], spec.partition(":")[2])]
    return [*filter(None, os.environ.get(VARIABLE, "").split(",")), *own]


def remember(specs: Collection[str]) -> None:
    """For this process and, but for a session's own, which others cannot import, for those that it starts."""
    own = [spec for spec in specs if is_a_sessions(spec)]
    _of_the_session[:] = own
    os.environ[VARIABLE] = ",".join(spec for spec in specs if spec not in own)


def loaded() -> Iterator[tuple[str, str, Any]]:
    """Of each of them its name, the ``module:NAME``, and what it names.

    Raises:
        UserError: see :func:`found`.
    """
    for spec in remembered():
        _, method = found(spec, ())
        yield getattr(method, "name", spec), spec, method


def where(method: Any) -> str:
    """``module:NAME`` of an object that a module has at its top level; empty if none has it.

    Of a session that has it from a module it is the module's, which other processes can import.
    """
    found = [
        f"{module}:{name}"
        for module, content in list(sys.modules.items())
        for name, value in list(getattr(content, "__dict__", {}).items())
        if value is method and module != "builtins" and not name.startswith("_")  # as what was shown last is
    ]
    return min(found, key=is_a_sessions, default="")


def is_a_sessions(spec: str) -> bool:
    """Whether it is of a notebook's or a script's own module, which no other process can import."""
    return spec.partition(":")[0] in ("__main__", "__mp_main__")


def _importable(file: Path, told: str) -> str:
    """The name by which a file can be imported from now on."""
    if not file.is_file():
        raise UserError(f"{told}: there is no file {file}")
    if not file.stem.isidentifier():
        raise UserError(f"{told}: {file.name}: a module is called in letters, digits and _, as fed_mine.py")
    for place in (file, file.parent, file.parent / "__pycache__"):
        if place.exists() and (mode := place.stat().st_mode) & stat.S_IWOTH:
            raise UserError(
                f"{told}: everybody can change {place} ({stat.filemode(mode)}), and what lies beside the "
                "file may run with it; put the file into a folder of your own"
            )
    if str(file.parent) not in sys.path:
        # The last: a file beside it, as queue.py, stands in for no module of Python's or of a package's.
        sys.path.append(str(file.parent))
    return file.stem
