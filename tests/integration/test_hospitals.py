"""From nothing to a federation: provisioned kits, prepared by `medpfl site init`, and a job that finds their data."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from nvflare.recipe import ProdEnv

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.data.kinds.npz.catalog import open_dataset
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.flare.admin.remote import System
from medpfl.flare.job.recipes import FedAvgRecipe
from medpfl.site.policy import HOSPITAL
from medpfl.site.store import DiskStore

ROOT = Path(__file__).parents[2]
HOSPITALS = ("north-hospital", "south-clinic", "east-institute")
SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def kits(tmp_path):
    """Kits of app_config's project, on a port that is free."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    project = tmp_path / "project.yml"
    project.write_text((ROOT / "app_config" / "project.yml").read_text().replace("8002", str(port)))
    command = [SCRIPTS / "nvflare", "provision", "-p", project, "-w", tmp_path / "federation"]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=tmp_path)
    return tmp_path / "federation" / "medpfl" / "prod_00"


@pytest.fixture
def start():
    """Starts a kit as its start.sh does; whatever was started ends with the test."""
    started = []

    def start(kit: Path) -> None:
        environment = os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
        with open(kit / "out.txt", "w") as out:
            command = ["bash", kit / "startup" / "sub_start.sh", "--once"]
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        started.append(process)

    yield start
    for process in reversed(started):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def own_file(folder: Path, third: int) -> Path:
    """A hospital's images: every third one of the embedded sample."""
    sample = open_dataset("organamnist-sample")
    arrays = {}
    for code, part in enumerate(("train", "val", "test")):
        rows = np.flatnonzero(sample.split == code)[third::3]
        arrays |= {f"{part}_images": sample.images[rows], f"{part}_labels": sample.labels[rows]}
    np.savez(folder / f"own-{third}.npz", **arrays)
    return folder / f"own-{third}.npz"


def in_one_process(config: RunConfig, files: dict[str, Path], folder: Path) -> None:
    """The hospitals' run, each with its file, by `medpfl site init`'s policy; its state in a folder of its name."""
    config = config.model_copy(update={"names": tuple(files), "sites": len(files)})
    parties = {}
    for name, file in files.items():
        federation = Federation.of(config, file)
        site = federation.site(name, DiskStore(folder / name, durable=False), HOSPITAL)
        parties[name] = federation.guarded(site, policy=HOSPITAL)
    federation = Federation.of(config)
    run_in_process(federation.plan(), parties, federation.model, workers=1)


def verdict_of(folder: Path) -> dict:
    """Of the model that a site has."""
    [card] = folder.rglob("selected/card.json")
    return json.loads(card.read_text())["verdict"]


def wait_for_all(system: System) -> None:
    deadline = time.monotonic() + 120
    while True:
        with suppress(UserError):  # the server is not there yet
            if len(system.connected()) == len(HOSPITALS):
                return
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.slow
def test_provisioned_hospitals_train_with_their_own_data_and_their_policy_rules(tmp_path, kits, medpfl, start):
    (kits / "east-institute" / "local" / "privacy.json").write_text(
        json.dumps(
            {
                "scopes": [
                    {
                        "name": "no-batch-norm",
                        "task_result_filters": [
                            {
                                "path": "medpfl.flare.transport.filter.AllowListFilter",
                                "args": {"allowed": ["conv1.weight"]},
                            }
                        ],
                    }
                ],
                "default_scope": "no-batch-norm",
            }
        )
    )
    medpfl("site", "init", kits / "localhost")
    files = {name: own_file(tmp_path, third) for third, name in enumerate(HOSPITALS)}
    for name, file in files.items():
        # In the order of samples that follows from the job's seed, so that one process has the same figures.
        medpfl("site", "init", kits / name, "--data", f"organs={file}", "--policy", "own_seed=false")
    for name in ("localhost", *HOSPITALS):
        start(kits / name)
    wait_for_all(System(kits / "admin@example.org"))  # FLARE would begin with as many as are needed
    recipe = FedAvgRecipe(
        data="organs",
        data_args={"classes": [f"organ {k}" for k in range(11)], "size": 28, "channels": "grey"},
        partition="natural",
        sites=3,
        names=HOSPITALS,
        rounds=2,
        min_sites=2,
        train_fraction=0.3,
        name="organs",
    )
    env = ProdEnv(str(kits / "admin@example.org"), login_timeout=60, username="admin@example.org")
    run = recipe.execute(env)
    folder = run.get_result(timeout=400)
    logs = "\n".join(file.read_text()[-3000:] for file in kits.glob("*/out.txt"))
    assert folder, logs
    results = json.loads((Path(folder) / "workspace" / "results.json").read_text())
    assert results["status"] == "finished", logs
    assert [r["participants"] for r in results["rounds"]] == [["north-hospital", "south-clinic"]] * 2
    reasons = {failure["site"]: failure["reason"] for failure in results["failures"]}
    assert reasons.keys() == {"east-institute"}
    assert reasons["east-institute"].startswith("site policy forbids 'conv1.bias' and 16 more to leave")
    tested = results["final"]["last"]["sites"]
    # 508 cases each, which leave a real site in tens.
    assert {site: values["n"] for site, values in tested.items()} == {"north-hospital": 500, "south-clinic": 500}
    assert str(tmp_path) not in json.dumps(results)
    for log in (kits / "localhost").rglob("*error_log*"):  # the sites' own are not sent to the server
        assert "PersonalizedExecutor" not in log.read_text()
    personal = {file.relative_to(kits).parts[0] for file in kits.rglob("model-*.safetensors")}
    assert personal == {"north-hospital", "south-clinic"}
    # What taking part was worth is the hospitals' own to know, unless their policy says otherwise.
    assert not {"verdict", "reference"} & results.keys()
    here = ("north-hospital", "south-clinic")
    in_one_process(recipe.config, {name: files[name] for name in here}, tmp_path / "one-process")
    for name in here:
        said = verdict_of(kits / name)
        assert said["alone"]["n"] == 508
        assert said["gain"]["accuracy"]["low"] <= said["gain"]["accuracy"]["difference"]
        again = verdict_of(tmp_path / "one-process" / name)
        assert said["gain"].keys() == again["gain"].keys()
        for measure, gained in said["gain"].items():
            assert gained == pytest.approx(again["gain"][measure], abs=1e-6)
        assert "508" in next((kits / name).rglob("selected/verdict.html")).read_text()
