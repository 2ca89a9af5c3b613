"""Updates far larger than the others of their round: no site may carry the mix away with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from statistics import median

import torch

from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.messages import Failure, Message, Update, in_channel
from medpfl.core.parameters import State, distance, length

LEAST = 3
"""Updates below which there is no majority to measure one by."""
Shares = dict[str, dict[str, float]]
"""By site and channel the share of what came that was used, where not all of it was."""


def check_magnitudes(
    config: RunConfig, sent: Mapping[str, Message], updates: Sequence[Update], means: Iterable[Channel] = ()
) -> tuple[list[Update], list[Failure], Shares]:
    """Refuses or scales back updates that moved more than ``large_factor`` times as far as the others.

    An update is measured by the median of the **other** updates' distances, so a large one does not raise its own
    limit. Where the median is 0 (nothing is shared, or nobody moved) there is no limit.

    Args:
        config: ``large_updates`` says what to do, ``large_factor`` from when on.
        sent: every site's message.
        updates: answers to training messages, well formed and finite.
        means: channels of whose tensors the server takes the mean: they are measured likewise, by their length.

    Returns:
        The updates to use, in the same order; what was done to whom; and what was scaled back in channels. Of updates
        that are scaled back the tensors are replaced one by one.
    """
    shares: Shares = {}
    if config.large_updates == "accept" or len(updates) < LEAST:
        return list(updates), [], shares
    used, told = _limited(
        config,
        updates,
        [distance(sent[u.site].shared, u.tensors) for u in updates],
        "its update is {} times as far from what it was sent as the others' (median)",
        lambda u, share: _scale_back(sent[u.site].shared, u.tensors, share),
    )
    for name in (channel.name for channel in means):
        used, more = _limited(
            config,
            used,
            [length(in_channel(name, u.tensors)) for u in used],
            f"what it sent in {name} is {{}} times as large as the others' (median)",
            lambda u, share, name=name: _shrink(u, name, share, shares),
        )
        told += more
    return used, told, shares


def _shrink(update: Update, channel: str, share: float, shares: Shares) -> None:
    update.tensors.update({name: tensor * share for name, tensor in in_channel(channel, update.tensors).items()})
    shares.setdefault(update.site, {})[channel] = share


def _limited(
    config: RunConfig,
    updates: Sequence[Update],
    sizes: Sequence[float],
    words: str,
    shrink: Callable[[Update, float], None],
) -> tuple[list[Update], list[Failure]]:
    if len(updates) < LEAST:
        return list(updates), []
    used: list[Update] = []
    told: list[Failure] = []
    for i, update in enumerate(updates):
        usual = median([*sizes[:i], *sizes[i + 1 :]])
        limit = config.large_factor * usual
        if not usual or sizes[i] <= limit:
            used.append(update)
            continue
        size = words.format(f"{sizes[i] / usual:.3g}")
        if config.large_updates == "clip" and isfinite(sizes[i]):
            shrink(update, limit / sizes[i])
            used.append(update)
            told.append(
                Failure(update.site, update.round, f"{size}; it was scaled back to {config.large_factor:g} times")
            )
        else:
            told.append(Failure(update.site, update.round, f"{size}; {config.large_factor:g} times is the limit"))
    return used, told


def _scale_back(sent: State, returned: State, share: float) -> None:
    for name, tensor in sent.items():
        returned[name] = torch.lerp(tensor.to(returned[name].dtype), returned[name], share)
