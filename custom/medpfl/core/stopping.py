"""How threads in which sites are computed end their work once nobody waits for them any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

OF_SITES = "medpfl-site"
"""How the names of these threads begin."""
_asked = threading.local()


class Abandoned(BaseException):
    """In a thread that was asked to stop: no error of its work, so that nothing on the way takes it for one."""


@contextmanager
def ends_when(stop: threading.Event) -> Iterator[None]:
    """Inside, this thread's :func:`stop_if_asked` raises once the event is set."""
    _asked.stop = stop
    try:
        yield
    finally:
        del _asked.stop


def stop_if_asked() -> None:
    """Between two batches, trained on or predicted: nothing is half-written there.

    Raises:
        Abandoned: whoever waits for this thread was interrupted.
    """
    stop = getattr(_asked, "stop", None)
    if stop is not None and stop.is_set():
        raise Abandoned


def at_work() -> bool:
    """Whether a site is still computed, as after an interrupt of the wait for its end."""
    return any(thread.name.startswith(OF_SITES) for thread in threading.enumerate())
