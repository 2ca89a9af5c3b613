"""A killed run goes on after its last finished round and ends with the figures of one that was never stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from agreement import assert_same_models, figures

ARGUMENTS = ["fedap", "--sites", "2", "--rounds", "6", "--train-fraction", "0.2", "--seed", "3"]


@pytest.fixture
def short_folder():
    """pytest's own are too long for the sockets that FLARE's simulator opens in the temporary folder."""
    with TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def finished_rounds(out: Path, env: str) -> int:
    file = out / "results.json" if env == "inprocess" else out / "flare/fedap/server/simulate_job/results.json"
    try:
        return len(json.loads(file.read_text())["rounds"])
    except FileNotFoundError:
        return 0


def nobody_left(out: Path) -> None:
    """Waits until no process of the killed run is left to write into its state."""
    deadline = time.monotonic() + 20
    while of_run(out):
        assert time.monotonic() < deadline, "the killed run's processes go on"
        time.sleep(0.1)


def of_run(out: Path, *words: str) -> list[psutil.Process]:
    """Processes of the run in this folder whose command line has all of the words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or ()
        if any(str(out) in part for part in command) and set(words) <= set(command):
            found.append(process)
    return found


def start_and_wait(out: Path, env: str, rounds: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "medpfl.cli.main", "run", *ARGUMENTS, "--env", env, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while finished_rounds(out, env) < rounds:
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("env", ["inprocess", "sim"])
def test_kill_and_resume(small_run, medpfl, tmp_path, env):
    out = tmp_path / "run"
    process = start_and_wait(out, env, rounds=2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    nobody_left(out)

    again = medpfl("run", *ARGUMENTS, "--env", env, "--out", out, check=False)
    assert again.returncode == 2
    assert "--resume" in again.stderr

    # What is the default anyway may be said or not: to the sites, too, it is the same run.
    done = medpfl("run", *ARGUMENTS, "--env", env, "--out", out, "--resume", "--set", "momentum=0")
    assert "round 1/6" not in done.stderr and "round 5/6" in done.stderr
    whole = small_run("fedap", "inprocess", rounds=6)
    assert figures(out) == figures(whole)
    assert_same_models(out, whole)
    seconds = json.loads((out / "results.json").read_text())["seconds"]
    assert seconds["total"] >= seconds["start"] + seconds["training"]  # of all rounds, those before the kill too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nvflare.private.fed.app.simulator.simulator_worker", "site-2"), "the process of site-2 died"),
        (("nvflare.private.fed.app.simulator.simulator",), "the simulation ended before the run was done"),
    ],
    ids=["site", "server"],
)
def test_a_killed_process_ends_the_run_and_it_can_be_resumed(small_run, medpfl, tmp_path, words, reason):
    out = tmp_path / "run"
    process = start_and_wait(out, "sim", rounds=2)
    # The supervisor's command line ends with the simulator's, which has forked itself; the root of these goes first.
    those = [p for p in of_run(out, *words) if "medpfl.flare.launch.supervisor" not in p.cmdline()]
    min(those, key=lambda p: p.pid).kill()
    _, told = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"medpfl: {reason}" in told
    nobody_left(out)

    medpfl("run", *ARGUMENTS, "--env", "sim", "--out", out, "--resume")
    whole = small_run("fedap", "inprocess", rounds=6)
    assert figures(out) == figures(whole)
    assert_same_models(out, whole)


@pytest.mark.slow
def test_a_scheduler_that_ends_a_run_leaves_nothing_temporary(tmp_path, monkeypatch, short_folder):
    monkeypatch.setenv("TMPDIR", str(short_folder))
    process = start_and_wait(tmp_path / "run", "sim", rounds=1)
    assert list(short_folder.iterdir())
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command with --resume goes on from the last finished round" in said
    nobody_left(tmp_path / "run")
    assert list(short_folder.glob("*/fedap")) == []


@pytest.mark.slow
def test_a_temporary_folder_whose_path_is_too_long_for_sockets_is_refused(medpfl, tmp_path):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    done = medpfl("run", *ARGUMENTS, "--out", "run", cwd=tmp_path, check=False, own=True, env={"TMPDIR": str(long)})
    assert (done.returncode, "set TMPDIR to a shorter one, e.g. /tmp" in done.stderr) == (2, True), done.stderr


SLOW = """
import time
from pathlib import Path
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 11)

    def forward(self, x):
        if self.training and len(x) > 8:  # not those by which a run looks whether a network draws random numbers
            Path(__file__).with_name("begun").touch()
            time.sleep(40)
        return self.fc(x.flatten(1))
"""


@pytest.mark.slow
def test_a_second_interrupt_waits_for_no_batch(tmp_path):
    (tmp_path / "slow_of_mine.py").write_text(SLOW)
    options = ["--model", "slow_of_mine:Slow", "--out", str(tmp_path / "out"), "--env", "inprocess"]
    command = [sys.executable, "-m", "medpfl.cli.main", "run", "fedavg", *ARGUMENTS[1:], *options]
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    here = {"env": {**os.environ, "PYTHONPATH": paths}, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, **here) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupt again to end at once" in said and "medpfl: stopped; the same command with --resume" in said
    assert "terminate" not in said and "Traceback" not in said
