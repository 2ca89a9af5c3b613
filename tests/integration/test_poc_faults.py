"""A site's process is killed in a federation of real processes: FLARE ends the job, and the next one goes on."""

import json
import time
from pathlib import Path

import psutil
import pytest
from nvflare.recipe import PocEnv
from nvflare.recipe.run import Run

from medpfl.flare.job.recipes import FedBNRecipe


def finished_rounds(workspace: Path) -> int:
    """Of the job that runs now; FLARE moves its folder away at its end."""
    files = list(workspace.glob("*/prod_00/server/*/results.json"))
    return len(json.loads(files[0].read_text())["rounds"]) if files else 0


def results_in(folder: str) -> dict:
    return json.loads((Path(folder) / "workspace" / "results.json").read_text())


def job_process(workspace: Path, site: str) -> psutil.Process:
    """The process that runs the job at a site; its parent keeps the site connected."""
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if "client.worker_process" in command and f"/{site}/" in command + "/" and str(workspace) in command:
            return process
    raise AssertionError(f"no process of a job at {site}")


def job(env: PocEnv, folder: Path, rounds: int) -> Run:
    # PocEnv provisions anew for every job, so the state must not live in the kits.
    return FedBNRecipe(
        data="sarcoma-sample",
        sites=3,
        rounds=rounds,
        train_fraction=0.1,
        byoc=True,
        experiment="again",
        state_dir=folder,
    ).execute(env)


@pytest.mark.slow
def test_a_killed_site_process_ends_the_job_and_the_next_goes_on(tmp_path, monkeypatch):
    workspace = tmp_path / "poc"
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(workspace))
    env = PocEnv(num_clients=3)
    try:
        first = job(env, tmp_path, rounds=8)
        deadline = time.monotonic() + 200
        while finished_rounds(workspace) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        job_process(workspace, "site-1").kill()
        before = results_in(first.get_result(timeout=200, clean_up=False))
        assert "EXECUTION_EXCEPTION" in first.get_status()
        assert before["status"] == "running"
        done = job(env, tmp_path, rounds=8)
        results = results_in(done.get_result(timeout=300, clean_up=False))
        assert "COMPLETED" in done.get_status()
    finally:
        env.stop(clean_up=False)
    assert results["status"] == "finished"
    assert len(results["rounds"]) == 8
    # The rounds of the first job were not done again.
    kept = len(before["rounds"]) - 1
    assert kept >= 1
    assert results["rounds"][:kept] == before["rounds"][:kept]


@pytest.mark.slow
def test_a_job_may_give_results_again_that_flare_did_not_store(tmp_path, monkeypatch):
    """A job in which no site is asked for anything."""
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    env = PocEnv(num_clients=3)
    try:
        told = results_in(job(env, tmp_path, rounds=1).get_result(timeout=300, clean_up=False))
        (tmp_path / "left").mkdir()
        (tmp_path / "again" / "server" / "ended.json").write_text(json.dumps({"run": str(tmp_path / "left")}))
        again = job(env, tmp_path, rounds=1)
        results = results_in(again.get_result(timeout=300, clean_up=False))
        assert "COMPLETED" in again.get_status()
    finally:
        env.stop(clean_up=False)
    assert results | {"seconds": None} == told | {"seconds": None}
