"""A site's gate: builds a new answer from a strict schema, and sends nothing else.

Names, shapes and types of tensors are the run's own, made at the site from the contract; numbers are those of
:mod:`medpfl.core.answers`, as the site's policy lets them leave; reasons are words of a list.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from medpfl.core.answers import MOST_SECONDS, Nothing, answers
from medpfl.core.channels import Channel, Entry
from medpfl.core.messages import Task, Update
from medpfl.core.parameters import State, StateError
from medpfl.site import words
from medpfl.site.coarse import coarse_seconds, coarsened
from medpfl.site.policy import OPEN, SitePolicy

logger = logging.getLogger(__name__)

_NONE = (1.0, 0.0)
"""A range in which no number lies."""


@dataclass(frozen=True)
class Gate:
    """What may leave in one run.

    Attributes:
        shared: shape and type by name of what an update holds; empty where nothing is shared.
        channels: in which something may leave besides it.
        numbers: what the method reports of a site: by name the least and the most that it can be.
        measures: schema of what is learned from one model's predictions on one part.
        gains: measures of which a difference to training alone is told, and the most that it can be.
        policy: the site's.
        entries: what reasons may name: the model's tensors, the lines that describe them, and the run's mechanisms.
    """

    shared: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    channels: Sequence[Channel] = ()
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    measures: type[BaseModel] = Nothing
    gains: tuple[tuple[str, float], ...] = ()
    policy: SitePolicy = OPEN
    entries: frozenset[str] = frozenset()
    _said: set[str] = field(default_factory=set, repr=False)

    def passed(self, task: Task, update: Update) -> Update:
        """A new answer with what may leave of this one; all of an answer that has passed.

        Args:
            task: what it answers.
            update: as the site made it.

        Raises:
            StateError: it holds something else, which is named; nothing of it may leave.
        """
        try:
            schema = answers(self.measures, self.gains)[task]
            found = schema.model_validate(update.metrics, strict=True).model_dump(exclude_unset=True)
        except ValidationError as error:
            where = error.errors()[0]["loc"]
            name = _short(".".join(map(str, where)))
            logger.warning("%s: the metric %s may not leave: %s", update.site, name, error.errors()[0]["msg"])
            # A key that is not of the schema, or of `numbers` and not declared, is whatever the code made of it.
            declared = where[0] != "numbers" or len(where) == 1 or where[1] in self.numbers
            if error.errors()[0]["type"] == "extra_forbidden" or not declared:
                raise StateError(words.NO_ENTRY_OF_THE_RUN("a number")) from None
            raise StateError(words.METRIC_MAY_NOT_LEAVE(".".join(map(str, where)))) from None
        for name, value in (found.get("numbers") or {}).items():
            least, most = self.numbers.get(name, _NONE)
            if not least <= value <= most:
                if name not in self.numbers:
                    logger.warning("%s is none of the numbers that its mechanism names in `numbers`", _short(name))
                    raise StateError(words.NO_ENTRY_OF_THE_RUN("a number"))
                logger.warning("%s is %r; by its mechanism's `numbers` it is %g to %g", name, value, least, most)
                raise StateError(words.METRIC_MAY_NOT_LEAVE(f"numbers.{name}"))
        seconds = update.seconds
        if not isinstance(seconds, float | int) or not 0 <= seconds <= MOST_SECONDS:
            raise StateError(words.METRIC_MAY_NOT_LEAVE("seconds"))
        return Update(
            site=update.site,
            round=int(update.round),
            tensors=self._tensors(task, update.tensors),
            metrics=self._within(coarsened(found, self.policy)),
            seconds=coarse_seconds(float(seconds), self.policy),
        )

    def _within(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Rounded, a number may lie outside its range."""
        if not (numbers := metrics.get("numbers")):
            return metrics
        within = {name: float(np.clip(value, *self.numbers[name])) for name, value in numbers.items()}
        return metrics | {"numbers": within}

    def reason(self, text: str, more: frozenset[str] = frozenset()) -> str:
        """A reason of the list of words, or that the log says more; it passes :meth:`said` from then on.

        Args:
            text: why the site does not answer.
            more: names that it may hold besides :attr:`entries`.
        """
        reason = words.listed(text, self.entries | more)
        self._said.add(reason)
        return reason

    def said(self, text: str) -> bool:
        """Whether a reason has passed :meth:`reason` in this process."""
        return text in self._said

    def _tensors(self, task: Task, tensors: State) -> State:
        allowed = self.shared if task == "train" else {}
        entries = {name: entry for c in self.channels if task in c.tasks for name, entry in c.named.items()}
        found: State = {}
        for name, tensor in tensors.items():
            if name in allowed:
                found[name] = self._tensor(name, tensor, *allowed[name])
            elif name in entries:
                found[name] = self._in_channel(name, tensor, entries[name])
            else:
                logger.warning("%s is no tensor of the run", _short(name))
                raise StateError(words.NO_ENTRY_OF_THE_RUN("a tensor"))
        if missing := next((name for name in allowed if name not in found), None):
            raise StateError(words.MAY_NOT_LEAVE(missing))  # a part of an update is no update
        return found

    def _in_channel(self, name: str, tensor: Any, entry: Entry) -> Tensor:
        plain = self._tensor(name, tensor, entry.shape, entry.dtypes[0])
        # The last digits of a float64 are room for something else, and no mixing needs them.
        coarse = self.policy.measures != "full" and plain.dtype == torch.float64
        return plain.float().double() if coarse else plain

    def _tensor(self, name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        fits = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not fits or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            found = f"{tuple(tensor.shape)} {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            logger.warning("%s is %s, and may leave as %s %s alone", _short(name), found, shape, dtype)
            raise StateError(words.MAY_NOT_LEAVE(name))
        plain = tensor.detach().cpu().as_subclass(Tensor).contiguous()
        if not bool(torch.isfinite(plain).all()):
            logger.warning("%s has values that are not finite", _short(name))
            raise StateError(words.MAY_NOT_LEAVE(name))
        return plain


def _short(name: Any) -> str:
    return name[:100] if isinstance(name, str) else type(name).__name__
