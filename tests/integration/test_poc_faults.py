"""A site's process is killed in a federation of real processes: FLARE ends the job, and the next one goes on."""

import json
import time
from pathlib import Path

import psutil
import pytest
from nvflare.recipe import PocEnv

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


@pytest.mark.slow
def test_a_killed_site_process_ends_the_job_and_the_next_goes_on(tmp_path, monkeypatch):
    workspace = tmp_path / "poc"
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(workspace))
    env = PocEnv(num_clients=3)

    # PocEnv provisions anew for every job, so the state must not live in the kits.
    def job():
        return FedBNRecipe(
            data="sarcoma-sample",
            sites=3,
            rounds=8,
            train_fraction=0.1,
            byoc=True,
            experiment="again",
            state_dir=tmp_path,
        ).execute(env)

    try:
        first = job()
        deadline = time.monotonic() + 200
        while finished_rounds(workspace) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        job_process(workspace, "site-1").kill()
        before = results_in(first.get_result(timeout=200, clean_up=False))
        assert "EXECUTION_EXCEPTION" in first.get_status()
        assert before["status"] == "running"
        done = job()
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
