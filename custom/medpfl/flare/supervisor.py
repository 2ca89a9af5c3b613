"""Runs a command; when whoever started this process is gone, kills the command with all its descendants.

The simulator's processes outlive a killed caller, and would go on writing into the state of the run that resumes it.
The caller keeps the other end of this process's standard input: the kernel closes it however the caller ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil


def main() -> None:
    """``python -m medpfl.flare.supervisor COMMAND...``; exits with the command's code."""
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_when_abandoned, args=(process.pid,), daemon=True).start()
    code = process.wait()
    os._exit(code if code >= 0 else 1)  # an ordinary exit would wait for the thread that reads


def _kill_when_abandoned(pid: int) -> None:
    while os.read(0, 1):
        pass
    root = psutil.Process(pid)
    # Stopped from the root down, so that no parent can start or restart anything meanwhile.
    for process in [root, *root.children(recursive=True)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(1)


if __name__ == "__main__":
    main()
