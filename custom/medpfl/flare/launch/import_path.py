"""Where processes of FLARE that are started here find modules: where this one does."""

from __future__ import annotations

import os
import sys


def child_environment() -> dict[str, str]:
    """Of such a process: this one's, with its whole import path, a notebook's folder or a method's file's among it.

    ``python -m`` would put the current folder in front, where a file ``queue.py`` stands in for Python's own, and in a
    folder open to all another user's. From Python 3.11 on it does not.
    """
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(place) for place in sys.path))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
