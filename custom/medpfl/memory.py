"""How this process handles freed memory."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Tells glibc to reuse freed blocks instead of giving them back to the kernel at every step.

    A training step of a small network frees and takes some hundred kilobytes many times; each time the kernel would
    hand out zeroed pages again. Elsewhere than on Linux with glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)
