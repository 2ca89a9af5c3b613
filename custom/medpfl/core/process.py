"""Which process wrote something, and whether it still runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import psutil

_SAME = 60.0
"""Seconds by which two readings of one process's start may differ: the clock may have been set between."""


def this_process() -> dict[str, Any]:
    """This process, as plain values."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": round(psutil.Process().create_time())}


def is_gone(process: Mapping[str, Any]) -> bool:
    """Whether a process of :func:`this_process` has ended; one of another machine, or container, counts as running."""
    if process["host"] != socket.gethostname():
        return False
    try:
        return abs(psutil.Process(process["pid"]).create_time() - process["started"]) > _SAME
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
