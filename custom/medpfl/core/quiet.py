"""No warnings while a block runs, in however many threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_blocks = 0
_before = warnings.catch_warnings()


@contextmanager
def quiet() -> Iterator[None]:
    """Ignores all warnings until the last of the blocks that run at once has ended, then filters are as they were.

    Filters are the process's own, so that blocks of two threads which each put back what they found would leave those
    of the other.
    """
    global _blocks, _before
    with _lock:
        _blocks += 1
        if _blocks == 1:
            _before = warnings.catch_warnings()
            _before.__enter__()
            warnings.simplefilter("ignore")
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                _before.__exit__(None, None, None)
