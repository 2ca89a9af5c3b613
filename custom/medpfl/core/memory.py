"""How this process handles freed memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Tells glibc to reuse freed blocks instead of giving them back to the kernel at every step.

    A training step of a small network frees and takes some hundred kilobytes many times; each time the kernel would
    hand out zeroed pages again. Elsewhere than on Linux with glibc this does nothing.
    """
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def give_back_freed_memory() -> None:
    """Gives blocks that are free to the kernel, those of other threads too: milliseconds, so once a round at most.

    FLARE handles each message on a thread of a pool, and every thread's arena would keep what its largest needed.
    """
    if (malloc_trim := _of_glibc("malloc_trim")) is not None:
        malloc_trim(0)


class RoundEnd:
    """Frees what a round leaves in reference cycles; called at the end of each, it takes milliseconds.

    FLARE's messages lie in cycles with their tensors, and Python collects old cycles only when a quarter of all old
    objects is new. Imports make some hundred thousand of those, so that would be once in a thousand rounds. What lives
    at the end of the second to fourth round stays for the run and is looked at no more; a process that lives for one
    round alone spends nothing on it.
    """

    _SETTLED = 4

    def __init__(self) -> None:
        self._rounds = 0

    def __call__(self) -> None:
        """Collects all cycles."""
        self._rounds += 1
        if self._rounds > 1:
            gc.collect()
        if 1 < self._rounds <= self._SETTLED:
            gc.freeze()


def _of_glibc(function: str) -> Any:
    """The function, or None where there is no glibc."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform.startswith("linux") else None
