"""Where a server's gradients lead a site: what is added to every step moves the model as weights of its choice do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.messages import Message
from medpfl.core.parameters import State
from medpfl.core.site_data import SiteData


def led(
    config: RunConfig, channels: Iterable[Channel], message: Message, data: SiteData, *, even: bool
) -> Iterator[State]:
    """The shared state after one step, half of them and all of a round, as far as the server's gradients lead it.

    Args:
        config: of the run.
        channels: of the run.
        message: of a round, its tensors checked.
        data: the site's own.
        even: whether the site's order is the same in every round.

    Yields:
        The state with all steps last; nothing if no gradient came.
    """
    came = [message.brought(c.name) for c in channels if not c.to_server and c.in_each_step]
    gradients = {name: tensor for found in came for name, tensor in found.items()}
    if not gradients:
        return
    trainer = config.trainer.at(message.round)
    steps = config.local_epochs * trainer.steps(data, even=even)
    for count in (1, (steps + 1) // 2, steps):
        way = count * trainer.lr
        moved = {name: message.shared[name] - way * tensor for name, tensor in gradients.items()}
        yield {**message.shared, **moved}
