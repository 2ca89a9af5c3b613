"""What travels besides the shared part of the model: by name, with its direction, its check and how sites' are joined.

Messages, the check of updates, the gate of a site, the checkpoint, the count of bytes and what a site is told of a job
all read channels; none of them knows a method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from medpfl.core.messages import Task, named
from medpfl.core.parameters import State, StateError

LARGEST = 1e30
"""What a number may be at most: its square, and sums of such, stay finite in float64."""
Joined = Literal["by site", "mean"]
"""What the server makes of what the sites send in a channel."""


@dataclass(frozen=True)
class Entry:
    """What one tensor must be.

    Attributes:
        shape: None stands for a length that is the same in all entries of the channel, and at most ``longest``; -1 for
            any length.
        dtypes: one of them.
        least: of its values.
        most: of its values.
        longest: see ``shape``.
    """

    shape: tuple[int | None, ...]
    dtypes: tuple[torch.dtype, ...]
    least: float = -LARGEST
    most: float = LARGEST
    longest: int = 0

    def check(self, name: str, tensor: Tensor) -> None:
        """Raises StateError, which names the entry, unless the tensor is as it must be."""
        shape = tuple(tensor.shape)
        lengths = [length for length, known in zip(shape, self.shape, strict=False) if known is None]
        fits = len(shape) == len(self.shape) and all(k in (None, -1, n) for n, k in zip(shape, self.shape, strict=True))
        if not fits or any(length > self.longest for length in lengths):
            expected = [f"at most {self.longest}" if n is None else n for n in self.shape]
            raise StateError(f"{name} has shape {list(shape)}, expected {expected}")
        if tensor.dtype not in self.dtypes:
            raise StateError(f"{name} has type {tensor.dtype}, expected {' or '.join(map(str, self.dtypes))}")
        finite = not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor).all())
        if not finite or bool((tensor.abs() > LARGEST).any()):
            raise StateError(f"{name} has non-finite values, or some beyond {LARGEST:g}")
        if bool((tensor < self.least).any()):
            raise StateError(f"{name} has {'negative values' if self.least == 0 else f'values below {self.least:g}'}")
        if bool((tensor > self.most).any()):
            raise StateError(f"{name} has values above {self.most:g}")

    @property
    def nbytes(self) -> int:
        """Bytes of such a tensor, at most; ValueError where any length will do."""
        if -1 in self.shape:
            raise ValueError(f"no bound is known of {list(self.shape)}")
        return prod(self.longest if n is None else n for n in self.shape) * self.dtypes[0].itemsize


@dataclass(frozen=True, eq=False)
class Channel:
    """One kind of tensors.

    Attributes:
        name: they travel as ``name/...``; to the sites under the name of the mechanism, whose step gives them.
        to_server: from a site to the server; else from the server to the sites.
        entries: what may travel, all of it at once, by name without the channel's.
        tasks: in whose messages, or in the answers to which.
        what: they are, in words for whoever has to allow it.
        reveals: what may be learned from it, in words.
        joined: what the server makes of the sites': it keeps each site's last, or takes their mean in every round.
        once: each site sends them once in a run.
        from_round: before which they do not travel in rounds of training.
        in_each_step: each is added to the gradient of the shared parameter of its name in every step of a round, so
            that a site's limits on weights hold for where they lead.
        weights: they are the model's own by name, so that a site's limits on weights hold for them.
        steers: they move the shared parameters in every step by amounts that no limit on weights bounds, so that a site
            with such limits takes no part.
        spreads: honest sites' lengths lie orders of magnitude apart, so that none is limited by the others'.
    """

    name: str
    to_server: bool
    entries: Mapping[str, Entry]
    tasks: tuple[Task, ...]
    what: str
    reveals: str = ""
    joined: Joined = "by site"
    once: bool = False
    from_round: int = 0
    in_each_step: bool = False
    weights: bool = False
    steers: bool = False
    spreads: bool = False

    @property
    def named(self) -> dict[str, Entry]:
        """The entries by the names under which they travel."""
        return named(self.name, self.entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it, at most."""
        return sum(entry.nbytes for entry in self.entries.values())

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises StateError unless these are all of the channel's entries and nothing else, each as it must be.

        Args:
            tensors: by the names under which they travel.
        """
        entries = self.named
        if extra := next((name for name in tensors if name not in entries), None):
            raise StateError(f"{extra} is none of what travels as {self.name!r}")
        if missing := [name for name in entries if name not in tensors]:
            raise StateError(f"{missing[0]} is missing ({len(missing)} in all)")
        for name, entry in entries.items():
            entry.check(name, tensors[name])
        free = {
            tensors[name].shape[i] for name, e in entries.items() for i, length in enumerate(e.shape) if length is None
        }
        if len(free) > 1:
            raise StateError(f"what travels as {self.name!r} has different lengths, {sorted(free)}")


def require_tensors(given: object, what: str) -> None:
    """StateError, which says what it is, unless it is a dictionary of tensors: another package's code made it."""
    if not isinstance(given, Mapping):
        raise StateError(f"{what} is {type(given).__name__}, not a dictionary of tensors")
    for name, tensor in given.items():
        if not isinstance(name, str):
            raise StateError(f"{what} has {name!r} as a name, {type(name).__name__}, not text")
        if not isinstance(tensor, Tensor):
            raise StateError(f"{what} has {name!r}, {type(tensor).__name__}, not a tensor")


def carried(tensors: State) -> State:
    """Tensors as messages carry them, in any engine: on the CPU, and without what a gradient would need of them."""
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def like(state: State, **limits: float) -> dict[str, Entry]:
    """Entries for tensors of the names, shapes and types of a state's."""
    return {name: Entry(tuple(tensor.shape), (tensor.dtype,), **limits) for name, tensor in state.items()}
