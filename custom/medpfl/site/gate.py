"""A site's gate: builds a new answer from a strict schema, and sends nothing else.

Names, shapes and types of tensors are the run's own, made at the site from the contract; numbers are those of
:mod:`medpfl.answers`, as the site's policy lets them leave; reasons are words of a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from medpfl.answers import ANSWERS, MOST_SECONDS
from medpfl.messages import STATISTICS, Task, Update
from medpfl.parameters import State, StateError
from medpfl.site.coarse import coarsened
from medpfl.site.policy import OPEN, SitePolicy
from medpfl.site.words import listed


@dataclass(frozen=True)
class Gate:
    """What may leave in one run.

    Attributes:
        shared: shape and type by name of what an update holds; empty where nothing is shared.
        statistics: shape by name of the statistics that the mixing rests on; empty where it rests on none.
        policy: the site's.
        entries: what reasons may name: the model's tensors, and the lines that describe them.
    """

    shared: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    statistics: Mapping[str, tuple[int, ...]]
    policy: SitePolicy = OPEN
    entries: frozenset[str] = frozenset()
    _said: set[str] = field(default_factory=set, repr=False)

    def passed(self, task: Task, update: Update) -> Update:
        """A new answer with what may leave of this one.

        Args:
            task: what it answers.
            update: as the site made it.

        Raises:
            StateError: it holds something else, which is named; nothing of it may leave.
        """
        try:
            found = ANSWERS[task].model_validate(update.metrics, strict=True).model_dump(exclude_unset=True)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise StateError(f"gate: metric {where!r} may not leave as it is") from None
        seconds = update.seconds
        if not isinstance(seconds, float | int) or not 0 <= seconds <= MOST_SECONDS:
            raise StateError("gate: metric 'seconds' may not leave as it is")
        return Update(
            site=update.site,
            round=int(update.round),
            tensors=self._tensors(task, update.tensors),
            metrics=coarsened(found, self.policy),
            seconds=round(float(seconds), 3),
        )

    def reason(self, text: str, more: frozenset[str] = frozenset()) -> str:
        """A reason of the list of words, or that the log says more; it passes :meth:`said` from then on.

        Args:
            text: why the site does not answer.
            more: names that it may hold besides :attr:`entries`.
        """
        words = listed(text, self.entries | more)
        self._said.add(words)
        return words

    def said(self, text: str) -> bool:
        """Whether a reason has passed :meth:`reason` in this process."""
        return text in self._said

    def _tensors(self, task: Task, tensors: State) -> State:
        allowed = self.shared if task == "train" else {}
        found: State = {}
        for name, tensor in tensors.items():
            if name in allowed:
                shape, dtype = allowed[name]
            elif name in self.statistics and task in ("prepare", "train", "statistics"):
                shape, dtype = self.statistics[name], torch.float64
            else:
                raise StateError(f"gate: {_short(name)!r} may not leave")
            found[name] = self._tensor(name, tensor, shape, dtype)
        if missing := next((name for name in allowed if name not in found), None):
            raise StateError(f"gate: {missing!r} may not leave")  # a part of an update is no update
        return found

    def _tensor(self, name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        fits = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not fits or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise StateError(f"gate: {name!r} may not leave")
        plain = tensor.detach().cpu().as_subclass(Tensor).contiguous()
        if not bool(torch.isfinite(plain).all()):
            raise StateError(f"gate: {name!r} may not leave")
        # The last digits of a float64 are room for something else, and W does not need them.
        if name.startswith(STATISTICS) and self.policy.measures != "full":
            plain = plain.float().double()
        return plain


def _short(name: Any) -> str:
    return name[:100] if isinstance(name, str) else type(name).__name__
