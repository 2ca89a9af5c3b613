"""The exported jobs are in step with the code and run with FLARE's own command."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOBS = sorted(folder.name for folder in (ROOT / "jobs").iterdir() if (folder / "meta.json").exists())


def content(job: Path) -> dict:
    """Every file of a job; lists of tasks are sets to FLARE, so their order says nothing."""

    def ordered(value):
        if isinstance(value, dict):
            return {k: sorted(v) if k == "tasks" else ordered(v) for k, v in value.items()}
        return [ordered(v) for v in value] if isinstance(value, list) else value

    return {str(f.relative_to(job)): ordered(json.loads(f.read_text())) for f in job.rglob("*.json")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    runpy.run_path(str(ROOT / "jobs" / "make_jobs.py"))["make_jobs"](folder)
    return folder


def test_every_job_is_made_by_the_script(made):
    assert sorted(folder.name for folder in made.iterdir()) == JOBS


@pytest.mark.parametrize("name", JOBS)
def test_job_is_in_step(made, name):
    assert content(ROOT / "jobs" / name) == content(made / name)


def simulated(job: Path, workspace: Path, sites: int) -> dict:
    """The results of a job that FLARE's own command ran, which empties its workspace first."""
    shutil.copytree(ROOT / "app_config" / "simulator" / "local", workspace / "local")
    command = [sys.executable, "-m", "nvflare.cli", "simulator", job, "-w", workspace]
    command += ["-n", str(sites), "-t", str(sites)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    file = workspace / "server" / "simulate_job" / "results.json"
    assert file.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads(file.read_text())
    assert results["status"] == "finished"
    assert not results["failures"]
    return results


@pytest.mark.slow
def test_an_exported_job_runs_with_flares_simulator_command(small_run, medpfl, tmp_path):
    said = ["--sites", 2, "--rounds", 2, "--train-fraction", 0.2, "--seed", 3]
    medpfl("export", "fedap", *said, "--job", tmp_path / "jobs" / "mine")
    results = simulated(tmp_path / "jobs" / "mine", tmp_path / "workspace", sites=2)
    here = json.loads((small_run("fedap", "inprocess") / "results.json").read_text())
    for env in (results, here):
        assert [r["participants"] for r in env["rounds"]] == [["site-1", "site-2"]] * 2
    measured = [results["final"]["last"]["mean"]["accuracy"], here["final"]["last"]["mean"]["accuracy"]]
    assert measured[0] == pytest.approx(measured[1], abs=1e-6)


@pytest.mark.slow
def test_job_runs_with_flares_simulator_command(tmp_path):
    results = simulated(ROOT / "jobs" / "organamnist-fedap", tmp_path, sites=5)
    assert len(results["rounds"]) == 10
