"""A server and sites as processes that connect with TLS: the installed package, a job that carries it, a refusal."""

import json
import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import series
from agreement import assert_alike
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted, UserError
from medpfl.engine.progress import watch_nothing
from medpfl.flare.job.export import export_job
from medpfl.flare.launch.poc import poc
from medpfl.flare.transport.tracking import installed
from medpfl.runs.experiment import run_experiment
from medpfl.runs.real_sites import run_in_production

CONFIG = make_config(algorithm="fedap", sites=2, rounds=2, train_fraction=0.2)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    with poc(tmp_path_factory.mktemp("poc"), CONFIG.site_names) as system:
        yield system
        running = psutil.Process().children(recursive=True)
        assert len(running) >= 6  # a supervisor and FLARE's own for the server and each site
    assert not [p for p in running if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def forbid(kits: Path) -> None:
    for file in kits.glob("*/local/resources.json"):
        content = json.loads(file.read_text())
        content["class_allow_list"] = list(DEFAULT_CLASS_ALLOW_LIST)
        file.write_text(json.dumps(content))


def flat(verdict: dict) -> dict[str, float]:
    """By site and measure what is gained, with its interval; -1 for one of which nobody knows it."""
    sites = verdict["sites"].items()
    gains = {f"{s} {m}": gain for s, of in sites for m, gain in of["gain"].items()}
    told = {f"{what} {k}": v for what, gain in gains.items() for k, v in (gain or {}).items()}
    return told | {what: -1.0 for what, gain in gains.items() if gain is None}


def check(results: dict) -> None:
    assert results["status"] == "finished"
    assert not results["failures"]
    assert [r["participants"] for r in results["rounds"]] == [["site-1", "site-2"]] * 2


@pytest.mark.slow
def test_installed_package(system, tmp_path):
    seen = []

    def interrupt(now):
        seen.append(now)
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="goes on at the server"):
        run_in_production(CONFIG, tmp_path / "run", kit=system.folder, track="tensorboard", watch=interrupt)
    results = run_in_production(CONFIG, tmp_path / "run", kit=system.folder, resume=True, watch=seen.append)
    check(results)
    assert results["environment"]["env"] == "prod"
    here = run_experiment(CONFIG, tmp_path / "here", env="inprocess", threads=1)
    assert flat(results["verdict"]) == pytest.approx(flat(here["verdict"]), abs=1e-6)
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    assert (tmp_path / "run" / "report.html").exists()
    phases = [now.phase for now in seen]  # as they stood every two seconds: a short one may pass between two looks
    assert phases[0] == "submitted"
    assert set(phases) & {"prepare", "train", "validate", "test"}
    [events] = (tmp_path / "run" / "flare").glob("*/workspace/tb_events")
    assert series.tensorboard(events) == series.expected(results)
    kits = system.folder.parent
    personal = [os.path.relpath(f, kits).split(os.sep)[0] for f in kits.rglob("personal-*.safetensors")]
    assert set(personal) == {"site-1", "site-2"}  # and none at the server
    # Servers of one machine do not take each other's jobs.
    assert (kits / "server" / "jobs-storage" / results["environment"]["job"]).is_dir()
    again = run_in_production(CONFIG, tmp_path / "run", kit=system.folder, resume=True)
    assert again == results


@pytest.mark.slow
@pytest.mark.skipif(installed("wandb"), reason="wandb is installed")
def test_tracker_that_the_server_lacks_is_named(system, tmp_path, monkeypatch):
    here = ModuleType("wandb")
    here.__spec__ = ModuleSpec("wandb", None, origin="wandb")
    monkeypatch.setitem(sys.modules, "wandb", here)
    with pytest.raises(UserError, match="--track wandb: the server has no package wandb; install it there"):
        run_in_production(CONFIG, tmp_path / "run", kit=system.folder, track="wandb")


@pytest.mark.slow
def test_refused_class_is_named(system, tmp_path):
    forbid(system.folder.parent)
    with pytest.raises(UserError, match=r"site-1 and site-2 will not load medpfl\..*class_allow_list"):
        run_in_production(CONFIG, tmp_path / "run", kit=system.folder)


@pytest.mark.slow
def test_job_folder_that_carries_the_package_goes_through_flares_own_command(tmp_path):
    data = {"data": "sarcoma-sample", "task": "segmentation", "partition": "natural", "sites": 3}
    config = make_config(algorithm="fedbn", **data, train_fraction=0.1, rounds=2, participation=0.7, alone="no")
    job = export_job(config, tmp_path / "jobs" / "mine", byoc=True)
    assert [f.name for f in job.rglob("*.npz")] == ["sarcoma-mr-sample.npz"]
    with poc(tmp_path / "poc", config.site_names) as system:
        forbid(system.folder.parent)
        command = [sys.executable, "-m", "nvflare.cli", "job", "submit", "-j", job, "--startup-kit", system.folder]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        job_id = re.search(r"job_id: (\S+)", said)[1]
        there = system.complete(job_id, tmp_path, watch_nothing)
    here = run_experiment(config, tmp_path / "here", env="inprocess", threads=1)
    assert not there["failures"]
    rounds = [(r["participants"], r["following"]) for r in there["rounds"]]
    assert rounds == [(r["participants"], r["following"]) for r in here["rounds"]]
    assert [(len(drawn), len(following)) for drawn, following in rounds] == [(2, 1)] * 2
    assert_alike(here["final"], there["final"])


@pytest.mark.slow
def test_users_and_sites_that_flare_refuses(system, tmp_path):
    other = system.folder.with_name("org-admin@nvidia.com")
    with pytest.raises(UserError, match=r"org-admin@nvidia.com may not submit jobs"):
        run_in_production(CONFIG, tmp_path / "run", kit=other)
    three = CONFIG.model_copy(update={"sites": 3})
    with pytest.raises(UserError, match=r"2 of 3 sites are connected and 3 are needed: site-3 is missing"):
        run_in_production(three, tmp_path / "run", kit=system.folder)
    with pytest.raises(UserError, match="knows no job"):
        system.has_failed("0cfc76ca-f947-4747-b43f-a451ace0a897", tmp_path)
