"""What a provisioned federation refuses, and what its user is told: of kits, signatures, classes and a lost server."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client import file_transfer
from nvflare.lighter.utils import load_private_key_file, sign_folders

from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted, UserError
from medpfl.data.kinds.npz.catalog import find
from medpfl.engine.progress import watch_nothing
from medpfl.flare.admin.remote import System
from medpfl.flare.job.classes import is_own
from medpfl.flare.job.recipes import PersonalizedRecipe, allow_package
from medpfl.flare.launch.poc import free_port, own_storage, start_kit
from medpfl.runs.real_sites import run_in_production

ROOT = Path(__file__).parents[2]
ADMIN, SERVER, SITES = "admin@example.org", "localhost", ("north-hospital", "south-clinic")
CONFIG = make_config(algorithm="fedavg", sites=2, rounds=1, train_fraction=0.1)

pytestmark = pytest.mark.slow


def provision(folder: Path, port: int) -> Path:
    """Kits of a project of its own, with a root key of its own."""
    project = yaml.safe_load((ROOT / "app_config" / "project.yml").read_text())
    project["participants"][0]["fed_learn_port"] = port
    folder.mkdir()
    (folder / "project.yml").write_text(yaml.safe_dump(project, sort_keys=False))
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "."]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder)
    return folder / "medpfl" / "prod_00"


class Federation:
    """A server and two hospitals, which keep their logs to themselves, and the kits of another project."""

    def __init__(self, folder: Path):
        port = free_port()
        self.kits, self.others = provision(folder / "one", port), provision(folder / "two", port)
        self.running: dict[str, subprocess.Popen] = {}
        for name in (SERVER, *SITES):
            allow_package(self.kits / name / "local")
            self.change(name, "local/resources.json", allow_log_streaming=False)
        own_storage(self.kits / SERVER)
        for name in (SERVER, *SITES):
            self.start(name)
        self.system = System(self.kits / ADMIN)

    def start(self, name: str) -> None:
        self.running[name] = start_kit(self.kits / name, {})

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.stdin.close()
        process.wait()

    def process(self, name: str) -> psutil.Process:
        """The one of FLARE that the others answer to."""
        family = psutil.Process(self.running[name].pid).children(recursive=True)
        return next(p for p in family if "server_train" in " ".join(p.cmdline()) and "python" in p.name())

    def wait(self) -> None:
        until = time.monotonic() + 120
        while True:
            try:
                if self.system.connected() == sorted(SITES):
                    return
            except UserError:
                assert time.monotonic() < until
            time.sleep(1)

    def change(self, name: str, file: str, **values) -> dict:
        """Changes values of a kit's file; returns what was there."""
        path = self.kits / name / file
        before = json.loads(path.read_text())
        path.write_text(json.dumps(before | values))
        return before

    def refusal_of(self, folder: Path) -> str:
        """Why a job that was submitted did not end well."""
        config = CONFIG.model_copy(update={"names": SITES})
        job = self.system.submit(PersonalizedRecipe(config, name="refused"), config.site_names)
        with pytest.raises(UserError) as caught:
            self.system.complete(job, folder, watch_nothing)
        return str(caught.value)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    found = Federation(tmp_path_factory.mktemp("federation"))
    try:
        found.wait()
        yield found
    finally:
        for name in list(found.running):
            found.stop(name)


def test_a_kit_of_another_project(federation, tmp_path):
    with pytest.raises(UserError, match=r"localhost:\d+ is of another project than the kit; ask its coordinator"):
        run_in_production(CONFIG, tmp_path / "run", kit=federation.others / ADMIN)
    assert not (tmp_path / "run").exists()


def test_a_kit_whose_user_was_changed(federation, tmp_path):
    before = federation.change(ADMIN, "startup/fed_admin.json")
    federation.change(ADMIN, "startup/fed_admin.json", admin=before["admin"] | {"username": "other@example.org"})
    try:
        with pytest.raises(UserError, match=r"does not take it: user, project or certificate are not as"):
            run_in_production(CONFIG, tmp_path / "run", kit=federation.kits / ADMIN)
    finally:
        federation.change(ADMIN, "startup/fed_admin.json", **before)


def unsigned(folder, key, certificate):
    pass


def changed_afterwards(folder, key, certificate):
    sign_folders(folder, key, certificate)
    file = next(Path(folder).rglob("config_fed_client.json"))
    file.write_text(file.read_text() + "\n")


def test_an_unsigned_job(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "sign_folders", unsigned)
    assert "refused by the server: the job is not signed by who submitted it" in federation.refusal_of(tmp_path)
    # A server that takes such jobs does not decide for the sites.
    before = federation.change(SERVER, "startup/fed_server.json", require_signed_jobs=False)
    try:
        said = federation.refusal_of(tmp_path)
    finally:
        (federation.kits / SERVER / "startup" / "fed_server.json").write_text(json.dumps(before))
    assert "north-hospital" in said
    assert "south-clinic: the job is not signed" in said.replace("south-clinic and north-hospital", "south-clinic")


def test_a_job_that_was_changed_after_it_was_signed(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "sign_folders", changed_afterwards)
    assert "refused by the server: the job was changed after it was signed" in federation.refusal_of(tmp_path)


def test_a_job_that_a_user_of_another_project_signed(federation, tmp_path, monkeypatch):
    startup = federation.others / ADMIN / "startup"

    def foreign(folder, key, certificate):
        sign_folders(folder, load_private_key_file(str(startup / "client.key")), str(startup / "client.crt"))

    monkeypatch.setattr(file_transfer, "sign_folders", foreign)
    assert "or signed by nobody of this project" in federation.refusal_of(tmp_path)


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_job_that_says_where_data_are(federation, tmp_path, monkeypatch, side):
    sample = find(CONFIG.data)

    def says_where(folder, key, certificate):
        file = next(Path(folder).rglob(f"config_fed_{side}.json"))
        content = file.read_text()
        assert f'"{CONFIG.data}"' in content
        file.write_text(content.replace(f'"{CONFIG.data}"', json.dumps(str(sample))))
        sign_folders(folder, key, certificate)

    monkeypatch.setattr(file_transfer, "sign_folders", says_where)
    said = federation.refusal_of(tmp_path)
    if side == "server":
        assert f"the job names its data by a path, '{sample}'; a job gives a name" in said
    else:
        assert "(north-hospital, south-clinic: the site cannot begin: UserError (its log says more))" in said
        job = said.partition(": ")[0].removeprefix("job ")
        assert "names its data by a path" in (federation.kits / "north-hospital" / job / "log.txt").read_text()


def test_a_class_that_a_site_does_not_allow_and_does_not_tell(federation, tmp_path):
    before = federation.change("north-hospital", "local/resources.json")
    allowed = [name for name in before["class_allow_list"] if not is_own(name)]
    federation.change("north-hospital", "local/resources.json", class_allow_list=allowed)
    alone = CONFIG.model_copy(update={"sites": 1, "names": ("south-clinic",)})
    try:
        said = federation.refusal_of(tmp_path)
        others = run_in_production(alone, tmp_path / "run", kit=federation.kits / ADMIN)
    finally:
        federation.change("north-hospital", "local/resources.json", **before)
    # A site that a job does not name cannot end it.
    assert others["status"] == "finished"
    assert not (federation.kits / "north-hospital" / others["environment"]["job"]).exists()
    job = said.partition(": ")[0].removeprefix("job ")
    assert "the job's process at north-hospital ended" in said
    assert f"{job}/error_log.txt in the kit of north-hospital" in said
    assert "class_allow_list" in said
    # What the user is sent to says it.
    assert "is not in allow_list" in (federation.kits / "north-hospital" / job / "error_log.txt").read_text()


def test_a_submit_that_was_interrupted_too_late_makes_no_second_job(federation, tmp_path, monkeypatch):
    submit = Session.submit_job

    def interrupted(self, *arguments, **options):
        submit(self, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "submit_job", interrupted)
        with pytest.raises(Interrupted, match="while the job was being submitted"):
            run_in_production(CONFIG, tmp_path / "run", kit=federation.kits / ADMIN)
    with federation.system.session() as session:
        jobs = {job["job_id"] for job in session.list_jobs()}
    results = run_in_production(CONFIG, tmp_path / "run", kit=federation.kits / ADMIN, resume=True)
    assert results["environment"]["job"] in jobs
    assert sorted(results["data"]["sites"]) == sorted(SITES)  # there were as many as --sites said
    with federation.system.session() as session:
        assert {job["job_id"] for job in session.list_jobs()} == jobs
    assert {folder.name for folder in (federation.kits / SERVER / "jobs-storage").iterdir()} == jobs


def test_a_server_that_does_not_answer_for_a_while_is_followed_again(federation, tmp_path):
    config = CONFIG.model_copy(update={"rounds": 4, "local_epochs": 4, "train_fraction": 1.0})
    server = federation.process(SERVER)
    seen = []

    def watch(now):
        if now.round and not any(past.round for past in seen):
            server.suspend()
        if now.phase == "unreachable":
            server.resume()
        seen.append(now)

    results = run_in_production(config, tmp_path / "run", kit=federation.kits / ADMIN, watch=watch)
    assert results["status"] == "finished"
    assert "it is asked for up to 10 min" in {now.note for now in seen if now.phase == "unreachable"}


def test_a_restart_of_the_server_is_told_and_the_run_goes_on_after_it(federation, tmp_path):
    config = CONFIG.model_copy(update={"rounds": 6, "local_epochs": 6, "train_fraction": 1.0})
    seen = []

    def watch(now):
        if now.round and SERVER in federation.running and not any(past.round for past in seen):
            federation.stop(SERVER)
        if now.phase == "unreachable" and SERVER not in federation.running:
            federation.start(SERVER)
        seen.append(now)

    with pytest.raises(UserError, match=r"was lost when FLARE's server was started anew at .*--resume"):
        run_in_production(config, tmp_path / "run", kit=federation.kits / ADMIN, watch=watch)
    assert "unreachable" in {now.phase for now in seen}
    federation.wait()
    first = []
    results = run_in_production(config, tmp_path / "run", kit=federation.kits / ADMIN, resume=True, watch=first.append)
    assert results["status"] == "finished"
    assert len(results["rounds"]) == 6
    assert next(now.round for now in first if now.phase == "train") >= 1
