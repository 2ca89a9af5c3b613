"""The channels of a run, looked at before it begins: a method may be another package's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

import torch
from torch import nn

from medpfl.algorithms.failing import asking
from medpfl.algorithms.mechanism import Mechanism
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel, Entry, Joined
from medpfl.core.errors import UserError
from medpfl.core.messages import Task
from medpfl.core.near import did_you_mean
from medpfl.core.parameters import ParameterSplit

_CARRYING: tuple[Task, ...] = ("prepare", "train", "statistics", "join")
"""Tasks with which more may travel than the shared part."""


def channels_of(config: RunConfig, model: nn.Module, split: ParameterSplit) -> dict[Channel, Mechanism]:
    """What travels besides the shared part, with the part of the method that each is of.

    Args:
        config: of the run.
        model: of its architecture.
        split: what is shared.

    Raises:
        UserError: a part's channels are none, or nothing would ever travel in one as it is declared.
    """
    found: dict[Channel, Mechanism] = {}
    for part in config.parts:
        with asking(part, "its channels"):
            declared = part.channels(config, model, split)
        if not isinstance(declared, tuple) or not all(isinstance(channel, Channel) for channel in declared):
            raise UserError(f"{part.name}: its channels gave {type(declared).__name__}, not a tuple of Channel")
        for channel in declared:
            if problem := next(_problems(channel, part, found), ""):
                raise UserError(f"{part.name}: its channel {channel.name!r} {problem}")
            found[channel] = part
    return found


def _problems(channel: Channel, part: Mechanism, others: dict[Channel, Mechanism]) -> Iterator[str]:
    if not channel.name or "/" in channel.name:
        yield "needs a name without /"
    for other, owner in others.items():
        if channel.name == other.name and (owner is not part or channel.to_server == other.to_server):
            yield f"is there already, of {owner.name}" if owner is not part else "is there twice"
    if not channel.to_server and channel.name != part.name:
        yield f"leads to the sites: call it {part.name!r}, as its part of the method is called"
    strange = [task for task in channel.tasks if task not in _CARRYING]
    if strange or not channel.tasks:
        task = f"the task {strange[0]!r}{did_you_mean(strange[0], _CARRYING)}" if strange else "no task"
        yield f"goes with {task}: there are {', '.join(_CARRYING)}"
    yield from _of_entries(channel)
    if channel.to_server and channel.joined == "mean" and "train" not in channel.tasks:
        yield "is joined 'mean', which is of a round's sites: give it the task 'train' too"
    if channel.joined not in get_args(Joined):
        yield f"is joined {channel.joined!r}: use {' or '.join(map(repr, get_args(Joined)))}"


def _of_entries(channel: Channel) -> Iterator[str]:
    if not isinstance(channel.entries, Mapping):
        yield f"has {type(channel.entries).__name__} as entries: use a dictionary of Entry"
        return
    for name, entry in channel.entries.items():
        if not isinstance(name, str) or not isinstance(entry, Entry):
            yield f"has {name!r}, {type(entry).__name__}, among its entries: use a dictionary of Entry"
        elif not isinstance(entry.shape, tuple) or not all(isinstance(n, int | None) for n in entry.shape):
            yield f"has {name!r} of shape={entry.shape!r}: use a tuple of lengths, such as (3,)"
        elif not all(isinstance(limit, int | float) for limit in (entry.least, entry.most)):
            yield f"has {name!r} of values from {entry.least!r} to {entry.most!r}: use numbers"
        elif not isinstance(entry.dtypes, tuple) or not all(isinstance(t, torch.dtype) for t in entry.dtypes):
            yield f"has {name!r} of dtypes={entry.dtypes!r}: use a tuple, such as (torch.float32,)"
        elif channel.to_server and (len(entry.dtypes) != 1 or {None, -1} & {*entry.shape}):
            yield (
                f"leads to the server, and {name!r} is of any length or of several types: a site sends one shape and "
                "one type, so that neither tells anything"
            )
