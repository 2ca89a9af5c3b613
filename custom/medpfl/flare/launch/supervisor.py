"""Runs a command; when whoever started this process is gone, kills the command with all its descendants.

The simulator's processes outlive a killed caller, and a killed simulator, and would go on writing into the state of the
run that resumes it. The caller keeps the other end of this process's standard input: the kernel closes it however the
caller ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

import psutil

_POLL_SECONDS = 2.0


def main() -> None:
    """``python -m medpfl.flare.launch.supervisor COMMAND...``; exits with the command's code."""
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    abandoned = threading.Event()
    killer = threading.Thread(target=_kill_when_abandoned, args=(process.pid, abandoned), daemon=True)
    killer.start()
    family: set[psutil.Process] = set()
    while True:
        try:
            code = process.wait(_POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                family |= set(_descendants(psutil.Process(process.pid)))
    # Whose parent has died is nobody's descendant any more, so its family is known from before.
    for left in family:
        _kill([left, *_descendants(left)])
    if abandoned.is_set():
        killer.join()  # it may have descendants still to kill
    os._exit(code if code >= 0 else 1)  # an ordinary exit would wait for the thread that reads


def _kill_when_abandoned(pid: int, abandoned: threading.Event) -> None:
    while os.read(0, 1):
        pass
    abandoned.set()
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        # Stopped from the root down, so that no parent can start or restart anything meanwhile.
        family = [root, *_descendants(root)]
        _kill(family)
        psutil.wait_procs(family, timeout=10)
    os._exit(1)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main()
