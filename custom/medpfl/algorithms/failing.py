"""What is said where a mechanism fails; another package's may raise anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

import torch

from medpfl.algorithms.mechanism import Mechanism
from medpfl.core.errors import Stopped, UserError, first_line
from medpfl.core.parameters import State


@contextmanager
def asking(mechanism: Mechanism, what: str, when: str = "") -> Iterator[None]:
    """UserError with the mechanism's name and the place in its code, for all but errors that have words of their own.

    Args:
        mechanism: the one at work.
        what: of it fails.
        when: in words.
    """
    try:
        yield
    except (UserError, Stopped, torch.OutOfMemoryError):
        raise
    except Exception as error:
        own = getattr(sys.modules.get(type(mechanism).__module__), "__file__", None)
        frames = extract_tb(error.__traceback__)
        place = next((f for f in reversed(frames) if f.filename == own), frames[-1])
        where = f"{Path(place.filename).name}, line {place.lineno}"
        said = f"{mechanism.name}: {what} failed {f'{when} ' if when else ''}({where})"
        raise UserError(f"{said}: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def at_server(mechanism: Mechanism, what: str, round_: int) -> Iterator[None]:
    """The same at the server, after a round; 0 before the first. There a GPU without memory is nobody else's matter."""
    when = f"after round {round_}" if round_ else "before round 1"
    try:
        with asking(mechanism, f"{what} at the server", when):
            yield
    except torch.OutOfMemoryError as error:
        full = f"{mechanism.name}: {what} at the server {when}: the GPU has not enough memory"
        raise UserError(f"{full}; --device cpu takes none of it: {first_line(error)}") from error


@contextmanager
def unchanged(mechanism: Mechanism, what: str, *given: State) -> Iterator[None]:
    """UserError if something that torch knows of changed a tensor in place: others have the same ones."""
    tensors = [tensor for state in given for tensor in state.values() if not tensor.is_inference()]
    versions = [tensor._version for tensor in tensors]
    yield
    if versions != [tensor._version for tensor in tensors]:
        raise UserError(f"{mechanism.name}: {what} at the server changed what it was given in place: make new tensors")
