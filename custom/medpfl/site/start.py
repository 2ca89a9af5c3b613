"""The start weights at a site: they come with the first message and are kept, for a later process of the run."""

from __future__ import annotations

from medpfl.algorithms.start import START
from medpfl.config.run import RunConfig
from medpfl.core.messages import Message
from medpfl.core.parameters import State, StateError
from medpfl.models.start_weights import Start
from medpfl.site import words
from medpfl.site.store import SiteStore, usable

INIT = "init"
"""Kind of a state in the site's store: the whole model that the run began with."""


def start_at_site(config: RunConfig, store: SiteStore, message: Message, name: str) -> Start:
    """The values that the contract names: those that came with the message, or that the site has kept since the hello.

    Whoever answers the hello keeps them, and not before the contract lets it: the folder may be another submitter's.

    Args:
        config: names them by their fingerprint.
        store: the site's.
        message: that is to be answered.
        name: the site's, for its log.

    Raises:
        StateError: there are none, or others.
    """
    found: State | None = message.brought(START) or usable(store, INIT, 0, name)
    if not found:
        raise StateError(words.START_NOT_KEPT())
    if (start := Start(found)).named != config.init:
        raise StateError(words.UNNAMED_START())
    return start
