"""What other packages add by entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any

from medpfl.core.errors import UserError, first_line


def installed(group: str, make: Callable[[Any], Any] = lambda thing: thing) -> Iterator[tuple[str, str, Any]]:
    """Of each entry point of a group its name, where it is, in words, and what is made of what it names.

    One that cannot be loaded stops whoever asks, even for another one: a mechanism may be on by itself, a kind of data
    is asked before this package's own, and a run without them would be another one without a word.

    Raises:
        UserError: it cannot be loaded or made.
    """
    for entry in entry_points(group=group):
        where = f"entry point {entry.name!r} of {entry.dist.name if entry.dist else 'a package'}, {entry.value}"
        try:
            made = make(entry.load())
        except Exception as error:  # somebody else's package may raise anything
            said = f"{where}, cannot be loaded: {type(error).__name__}: {first_line(error)}"
            raise UserError(f"{said}; mend that package, or uninstall it") from error
        yield entry.name, where, made
