"""A killed run goes on after its last finished round and ends with the figures of one that was never stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from test_engines_agree import assert_same_models, figures

ARGUMENTS = ["fedap", "--sites", "2", "--rounds", "6", "--train-fraction", "0.2", "--seed", "3", "--no-reference"]


def finished_rounds(out: Path, env: str) -> int:
    file = out / "results.json" if env == "inprocess" else out / "flare/fedap/server/simulate_job/results.json"
    try:
        return len(json.loads(file.read_text())["rounds"])
    except FileNotFoundError:
        return 0


def nobody_left(out: Path) -> None:
    """Waits until no process of the killed run is left to write into its state."""
    deadline = time.monotonic() + 20
    while any(str(out) in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline, "the killed run's processes go on"
        time.sleep(0.1)


@pytest.mark.parametrize("env", ["inprocess", "sim"])
def test_kill_and_resume(small_run, medpfl, tmp_path, env):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "medpfl.cli", "run", *ARGUMENTS, "--env", env, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while finished_rounds(out, env) < 2:
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    nobody_left(out)

    again = medpfl("run", *ARGUMENTS, "--env", env, "--out", out, check=False)
    assert again.returncode == 2
    assert "--resume" in again.stderr

    done = medpfl("run", *ARGUMENTS, "--env", env, "--out", out, "--resume")
    assert "round 1/6" not in done.stdout
    whole = small_run("fedap", "inprocess", rounds=6)
    assert figures(out) == figures(whole)
    assert_same_models(out, whole)
