"""Locks of folders, held by other processes and let go of when those are killed."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from medpfl.core.errors import UserError
from medpfl.core.lock import claimed, kernel_lock

HOLDER = """
import os, sys, time
from pathlib import Path
from medpfl.core.lock import claimed
with claimed(Path(sys.argv[1]), "in use"):
    if "fork" not in sys.argv or os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["", "fork"])
def test_a_killed_holder_lets_go_and_its_children_do_not_hold_on(tmp_path, how):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), how], stdout=subprocess.PIPE, text=True)
    told = int(holder.stdout.readline())
    try:
        with pytest.raises(UserError, match="in use"), claimed(tmp_path, "in use"):
            pass
    finally:
        holder.kill()
        holder.wait()
    try:
        with claimed(tmp_path, "in use"):
            assert (tmp_path / ".lock").exists()
    finally:
        if how:
            os.kill(told, signal.SIGKILL)


def test_one_process_claims_a_folder_once_and_then_again(tmp_path):
    with claimed(tmp_path, "in use"), pytest.raises(UserError, match="in use"), claimed(tmp_path, "in use"):
        pass
    with claimed(tmp_path, "in use"):
        pass
    assert (tmp_path / ".lock").exists()


def test_a_folder_that_is_gone_is_not_made_for_its_lock(tmp_path):
    with pytest.raises(UserError, match="gone cannot be written to"), claimed(tmp_path / "gone", "in use"):
        pass
    with pytest.raises(FileNotFoundError):
        kernel_lock(tmp_path / "gone" / "contract.lock")
    assert not (tmp_path / "gone").exists()


def test_a_file_system_without_locks_is_said_and_no_file_stands_in_for_them(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(UserError, match="Function not implemented"), claimed(tmp_path, "in use"):
        pass


def test_a_sites_own_lock_is_for_itself_alone(tmp_path):
    file: Path = tmp_path / "contract.lock"
    with kernel_lock(file, mode=0o600):
        assert file.stat().st_mode & 0o777 == 0o600
