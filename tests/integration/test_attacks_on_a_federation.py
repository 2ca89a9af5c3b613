"""A provisioned federation whose coordinator means harm: what its jobs and its commands get from prepared sites."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from nvflare.fuel.flare_api.api_spec import AuthorizationError

from medpfl.core.errors import UserError
from medpfl.data.kinds.npz.catalog import open_dataset
from medpfl.engine.progress import watch_nothing
from medpfl.flare.job.recipes import FedBNRecipe, deploy_to
from medpfl.flare.launch.poc import free_port, started
from medpfl.site.words import MANY_VALUES

ROOT = Path(__file__).parents[2]
ADMIN, SERVER, SITES = "admin@example.org", "localhost", ["north-hospital", "south-clinic"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kits(tmp_path_factory, medpfl):
    """Kits of a server whose code was changed and of two sites, prepared by `medpfl site init`."""
    folder = tmp_path_factory.mktemp("federation")
    project = yaml.safe_load((ROOT / "app_config" / "project.yml").read_text())
    project["participants"][0]["fed_learn_port"] = free_port()
    (folder / "project.yml").write_text(yaml.safe_dump(project, sort_keys=False))
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "."]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder)
    kits = folder / "medpfl" / "prod_00"
    medpfl("site", "init", kits / SERVER)
    (folder / "secrets").mkdir()
    (folder / "secrets" / "patient-Ada-Example.txt").write_text("Ada Example, born 1815")
    (folder / "answers").mkdir()
    for k, name in enumerate(SITES):
        own = ("--data", f"organs={images_of(folder / 'secrets', k)}")
        medpfl("site", "init", kits / name, *own, "--policy", "data_values=10000000")
        (kits / name / "precious").mkdir()
    file = kits / SERVER / "local" / "resources.json"
    content = json.loads(file.read_text())
    args = {"file": str(folder / "secrets" / "patient-Ada-Example.txt"), "sites": SITES}
    args |= {"folder": str(folder / "answers")}
    content["components"].append({"id": "hostile", "path": "hostile_server.AsksForMore", "args": args})
    file.write_text(json.dumps(content))
    return kits


def images_of(folder: Path, third: int) -> Path:
    """A site's images: every third one of the embedded sample."""
    sample = open_dataset("organamnist-sample")
    arrays = {}
    for code, part in enumerate(("train", "val", "test")):
        rows = np.flatnonzero(sample.split == code)[third::3]
        arrays |= {f"{part}_images": sample.images[rows], f"{part}_labels": sample.labels[rows]}
    np.savez(folder / f"site-{third}.npz", **arrays)
    return folder / f"site-{third}.npz"


@pytest.fixture(scope="module")
def system(kits):
    path = {"PYTHONPATH": f"{Path(__file__).parent}:{ROOT / 'custom'}"}
    with started(kits / ADMIN, kits / SERVER, [kits / name for name in SITES], {SERVER: path}) as system:
        yield system


def recipe(name: str, size: int) -> FedBNRecipe:
    return FedBNRecipe(
        data="organs",
        data_args={"classes": [f"organ {k}" for k in range(11)], "size": size, "channels": "grey"},
        partition="natural",
        sites=2,
        names=SITES,
        rounds=1,
        train_fraction=0.2,
        name=name,
    )


def submitted(system, folder: Path, name: str, change=None, size=28) -> str:
    """A job's id, changed by its submitter before it was signed."""
    recipe(name, size).export(folder)
    deploy_to(folder / name, SITES)
    if change:
        file = folder / name / "app" / "config" / "config_fed_client.json"
        content = json.loads(file.read_text())
        change(content, folder / name / "app")
        file.write_text(json.dumps(content))
    with system.session() as session:
        return session.submit_job(str(folder / name))


def ended(system, job: str, folder: Path) -> str:
    """Why it did not end well, as its submitter is told."""
    with pytest.raises(UserError) as caught:
        system.complete(job, folder, watch_nothing)
    return str(caught.value)


def own_logs(kits: Path, job: str) -> str:
    return "".join(f.read_text() for name in SITES for f in (kits / name).glob(f"{job}/*log*.txt")) + "".join(
        f.read_text() for name in SITES for f in (kits / name).glob("log.txt")
    )


def shell(marker: Path) -> dict:
    """A component that runs a command."""
    command = [sys.executable, "-c", f"open({str(marker)!r}, 'w')"]
    return {
        "path": "medpfl.models.factory.build_model",
        "args": {"name": "subprocess:Popen", "model_args": {"args": command}},
    }


def test_a_function_of_the_package_as_a_component(system, kits, tmp_path):
    def component(content, app):
        content["components"].append({"id": "model", **shell(tmp_path / "ran")})

    job = submitted(system, tmp_path, "component", component)
    said = ended(system, job, tmp_path / "out")
    time.sleep(3)  # what was started needs a moment
    assert not (tmp_path / "ran").exists()
    assert "no task was done" in said
    assert "class_allow_list" in said
    refused = "Component 'medpfl.models.factory.build_model' at config path 'components.#1' is not in allow_list"
    assert refused in own_logs(kits, job)


def test_a_function_of_the_package_within_an_allowed_class(system, kits, tmp_path):
    def nested(content, app):
        content["executors"][0]["executor"]["args"]["state_dir"] = shell(tmp_path / "ran")

    job = submitted(system, tmp_path, "nested", nested)
    ended(system, job, tmp_path / "out")
    time.sleep(3)
    assert not (tmp_path / "ran").exists()
    assert "is not in allow_list" in own_logs(kits, job)


def test_a_job_that_brings_code(system, kits, tmp_path):
    def code(content, app):
        (app / "custom").mkdir()
        source = f"class Runs:\n    def __init__(self):\n        open({str(tmp_path / 'ran')!r}, 'w')\n"
        (app / "custom" / "brought.py").write_text(source)
        content["components"].append({"id": "brought", "path": "brought.Runs", "args": {}})

    said = ended(system, submitted(system, tmp_path, "byoc", code), tmp_path / "out")
    time.sleep(3)
    assert not (tmp_path / "ran").exists()
    assert "north-hospital: this site takes no code from jobs" in said


@pytest.mark.parametrize(
    "command",
    [
        lambda session, site: session.cat_target(site, file="local/medpfl.json"),
        lambda session, site: session.grep_target(site, pattern="Launched", file="log.txt"),
        lambda session, site: session.head_target(site, file="log.txt"),
        lambda session, site: session.tail_target(site, file="log.txt"),
        lambda session, site: session.ls_target(site, options="-l", path="local"),
        lambda session, site: session.get_working_directory(site),
        lambda session, site: session.get_client_env([site]),
    ],
    ids=["cat", "grep", "head", "tail", "ls", "pwd", "report_env"],
)
def test_an_admins_commands(system, kits, command):
    with system.session() as session:
        try:
            said = json.dumps(command(session, "north-hospital"))
        except AuthorizationError as error:
            said = str(error)
    assert "not authorized for" in said
    assert str(kits) not in said
    assert "prod_00" not in said


def test_a_server_whose_code_was_changed(system, kits):
    answers = kits.parents[1] / "answers"
    until = time.monotonic() + 60
    while len(list(answers.glob("*.json"))) < len(SITES) and time.monotonic() < until:
        time.sleep(0.5)
    for name in SITES:
        read, deleted = json.loads((answers / f"{name}.json").read_text())
        assert "Ada" not in read
        assert (kits / name / "precious").is_dir()
        assert read == "this site serves no files, folders and log lines, and logs as it chose itself"
        assert deleted == "'precious' is no job's id"


def test_images_that_are_read_larger_than_the_sites_let(system, kits, tmp_path):
    """1,267 images of 128 x 128 at each; of 28 x 28 they are a tenth of the limit."""
    job = submitted(system, tmp_path, "large", size=128)
    said = ended(system, job, tmp_path / "out")
    assert MANY_VALUES(1e7) in said
    assert "20,758,528" not in said
    assert "they are up to 20,758,528 values" in own_logs(kits, job)
    assert "20,758,528" not in "".join(file.read_text() for file in kits.glob(f"*/{job}/error_log.txt"))


def test_an_honest_job(system, kits, tmp_path):
    results = system.complete(submitted(system, tmp_path, "honest"), tmp_path / "out", watch_nothing)
    assert results["status"] == "finished"
    assert not results["failures"]
    assert [r["participants"] for r in results["rounds"]] == [SITES]
    assert str(kits) not in json.dumps(results)
