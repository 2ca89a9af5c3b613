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


def test_job_runs_with_flares_simulator_command(tmp_path):
    shutil.copytree(ROOT / "app_config" / "simulator" / "local", tmp_path / "local")
    command = [Path(sys.executable).with_name("nvflare"), "simulator", ROOT / "jobs" / "organamnist-fedap"]
    done = subprocess.run([*command, "-w", tmp_path, "-n", "5", "-t", "5"], capture_output=True, text=True, timeout=300)
    file = tmp_path / "server" / "simulate_job" / "results.json"
    assert file.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads(file.read_text())
    assert results["status"] == "finished"
    assert len(results["rounds"]) == 10
    assert not results["failures"]
