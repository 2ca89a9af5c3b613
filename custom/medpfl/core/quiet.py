"""What is not said while a block runs: warnings, in however many threads, what was said before, or where it was."""

from __future__ import annotations

import logging
import threading
import traceback
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


@contextmanager
def said_once(of: str) -> Iterator[None]:
    """What a package and those in it log goes to the terminal once in a block, however often it is logged.

    Handlers of a program's own get it each time: it is where there are none that ``logging`` writes to the terminal.

    Args:
        of: the package's name, as its loggers have it.
    """
    said: set[tuple[str, str]] = set()

    def new(record: logging.LogRecord) -> bool:
        if record.name != of and not record.name.startswith(f"{of}."):
            return True
        this, known = (record.name, record.getMessage()), len(said)
        said.add(this)
        return len(said) > known

    handler = logging.lastResort
    if handler is None:  # a program may have taken it away
        yield
        return
    handler.addFilter(new)
    try:
        yield
    finally:
        handler.removeFilter(new)


@contextmanager
def traced_once(by: str) -> Iterator[None]:
    """Where an error came from is logged once in a block, however many sites meet it there; its line each time.

    Args:
        by: the logger's name.
    """
    seen: set[tuple[type, tuple[tuple[str, int], ...]]] = set()

    def shorter(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            frames = traceback.walk_tb(error.__traceback__)
            where = type(error), tuple((frame.f_code.co_filename, line) for frame, line in frames)
            if where in seen:
                record.exc_info = None
            seen.add(where)
        return True

    logger = logging.getLogger(by)
    logger.addFilter(shorter)
    try:
        yield
    finally:
        logger.removeFilter(shorter)
