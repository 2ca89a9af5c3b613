"""What a folder keeps of its job at a real federation; here the server's answers are given."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tiny import config as tiny_config

from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted, UserError
from medpfl.core.lock import LOCK
from medpfl.flare.admin.connected import Refused
from medpfl.runs import real_sites as production
from medpfl.runs.experiment import run_experiment

CONFIG = make_config(algorithm="fedavg", sites=2, rounds=2)


@dataclass
class Server:
    """In the place of a FLARE system: notes what is submitted, and stops or fails when it is told to."""

    experiments: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    stop: bool = False
    reached: bool = False
    refuses: str = ""
    failed: bool = False
    sites: tuple[str, ...] = ("site-1", "site-2")
    again: str = "the same command with --resume"

    def connected(self):
        return list(self.sites)

    def find(self, token):
        return self.tokens.get(token)

    def submit(self, recipe, sites, token):
        if self.refuses:
            raise Refused(self.refuses)
        with TemporaryDirectory() as folder:
            recipe.export(folder)
            [file] = Path(folder).rglob("config_fed_server.json")
            self.experiments.append(json.loads(file.read_text())["workflows"][0]["args"]["experiment"])
        job = f"job-{len(self.experiments)}"
        if self.reached or not self.stop:
            self.tokens[token] = job
        if self.stop:
            raise KeyboardInterrupt
        return job

    def has_failed(self, job, folder):
        return self.failed

    def complete(self, job, folder, watch):
        raise UserError(f"{job} did not end well")


@pytest.fixture
def server(monkeypatch):
    found = Server()
    monkeypatch.setattr(production, "System", lambda kit: found)
    return found


def start(out, config=CONFIG, *, ends=UserError, **options):
    with pytest.raises(ends) as caught:
        production.run_in_production(config, out, kit=out, **options)
    return str(caught.value), json.loads((out / "job.json").read_text())


def test_a_stop_while_submitting_loses_no_state(server, tmp_path):
    server.stop = True
    said, note = start(tmp_path, ends=Interrupted)
    assert "--resume" in said
    assert (note["job"], note["experiment"]) == (None, server.experiments[0])
    server.stop = False
    _, again = start(tmp_path, resume=True)
    assert (again["job"], again["experiment"]) == ("job-2", note["experiment"])
    assert "token" not in again
    assert server.experiments == [note["experiment"]] * 2


@pytest.mark.parametrize("resume", [True, False])
def test_a_stop_while_submitting_makes_no_second_job(server, tmp_path, resume):
    server.stop = server.reached = True
    start(tmp_path, ends=Interrupted)
    server.stop = False
    said, note = start(tmp_path, resume=resume)
    assert ("did not end well" if resume else "already holds a run: give --resume") in said
    assert note["job"] == "job-1"
    assert len(server.experiments) == 1


def test_a_stop_while_a_failed_job_is_submitted_again_makes_no_third(server, tmp_path):
    start(tmp_path)
    server.failed = server.stop = server.reached = True
    start(tmp_path, resume=True, ends=Interrupted)
    server.failed = server.stop = False
    assert start(tmp_path, resume=True)[1]["job"] == "job-2"
    assert len(server.experiments) == 2


def test_a_refused_run_leaves_nothing_new(server, tmp_path):
    server.refuses = "no"
    with pytest.raises(UserError, match="no"):
        production.run_in_production(CONFIG, tmp_path / "runs" / "first", kit=tmp_path)
    assert list(tmp_path.iterdir()) == []
    server.refuses = ""
    _, note = start(tmp_path)
    server.refuses, server.failed = "no", True
    assert start(tmp_path, resume=True) == ("no", note)


def test_a_number_of_sites_takes_the_names_of_those_that_are_connected(server, tmp_path):
    server.sites = ("north", "south", "west")
    with pytest.raises(UserError, match=r"has 2 sites \(--sites\), and 3 are connected; .* --sites north,south,west"):
        production.run_in_production(CONFIG, tmp_path / "run", kit=tmp_path)
    server.sites = ()
    with pytest.raises(UserError, match="no site is connected"):
        production.run_in_production(CONFIG, tmp_path / "run", kit=tmp_path)
    server.sites = ("north", "south")
    seen = []
    _, note = start(tmp_path, watch=seen.append)
    assert note["config"]["names"] == ["north", "south"]
    assert [now.note for now in seen] == ["the connected sites take part: north, south"]
    server.sites = ("north",)
    assert start(tmp_path, resume=True)[0] == "job-1 did not end well"


def test_a_kill_before_the_page_is_made_up_for(server, tmp_path, monkeypatch):
    results = run_experiment(tiny_config(rounds=1, sites=2), tmp_path / "simulated", env="inprocess", threads=1)
    monkeypatch.setattr(Server, "complete", lambda *_: results)
    with monkeypatch.context() as patch:
        patch.setattr(production, "write_report", interrupted)
        start(tmp_path / "out", ends=KeyboardInterrupt)
    assert (tmp_path / "out" / "results.json").exists()
    found = production.run_in_production(CONFIG, tmp_path / "out", kit=tmp_path, resume=True)
    assert found["environment"]["job"] == "job-1" and len(server.experiments) == 1
    assert (tmp_path / "out" / "report.html").exists() and (tmp_path / "out" / "history.csv").exists()


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("left", ["state", "flare/project.yml", "flare.log", "results.json"])
def test_a_folder_of_a_simulation_is_not_mixed_up(server, tmp_path, left):
    (tmp_path / LOCK).touch()
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).mkdir() if "." not in left else (tmp_path / left).touch()
    for resume in (False, True):
        with pytest.raises(UserError, match="holds a run on this machine"):
            production.run_in_production(CONFIG, tmp_path, kit=tmp_path, resume=resume)
    assert (tmp_path / left).exists()
    start(tmp_path, overwrite=True)
    assert not (tmp_path / left).exists()


def test_a_folder_of_sites_that_joined_may_get_a_run(server, tmp_path):
    kept = tmp_path / "flare" / "job-0" / "workspace"
    kept.mkdir(parents=True)
    for left in (LOCK, "join.json"):
        (tmp_path / left).touch()
    start(tmp_path)
    assert kept.exists()


def test_overwrite_throws_nothing_away_while_server_or_sites_are_away(server, tmp_path, monkeypatch):
    _, note = start(tmp_path)

    def silent():
        raise UserError("no answer")

    server.sites = ("site-1",)
    said, after = start(tmp_path, overwrite=True)
    assert "site-2 is missing" in said
    assert after == note
    monkeypatch.setattr(server, "connected", silent)
    assert start(tmp_path, overwrite=True) == ("no answer", note)


def test_overwrite_begins_anew_under_the_users_own_name(server, tmp_path):
    start(tmp_path, experiment="mine")
    start(tmp_path, experiment="mine", overwrite=True)
    one, two = server.experiments
    assert one != two
    assert one.startswith("mine-")
    assert two.startswith("mine-")


def test_a_failed_job_goes_on_with_other_patience_but_no_other_rounds(server, tmp_path):
    _, note = start(tmp_path)
    server.failed = True
    patient = CONFIG.model_copy(update={"timeout": 9.0, "min_sites": 1})
    _, again = start(tmp_path, patient, resume=True)
    assert (again["job"], again["experiment"]) == ("job-2", note["experiment"])
    assert (again["config"]["timeout"], again["config"]["min_sites"]) == (9.0, 1)
    said, after = start(tmp_path, CONFIG.model_copy(update={"rounds": 5}), resume=True)
    assert "rounds = 2, not 5" in said
    assert after == again


@pytest.mark.parametrize(
    ("verdict", "use", "notes"), [(None, "blend", 2), ({"counts": {}}, "blend", 1), (None, "received", 1)]
)
def test_results_say_what_hospitals_did_not_tell(verdict, use, notes):
    found = production._told({"verdict": verdict, "choices": {"use": use}})
    assert "in tens" in found[0]
    assert len(found) == notes
    assert ("may be nothing but the models that they trained alone" in found[-1]) == (notes == 2)
    assert ("or fewer validation patients than its least_patients chose what it uses" in found[-1]) == (notes == 2)


def test_results_of_another_run_are_not_the_jobs(server, tmp_path):
    _, note = start(tmp_path)
    results = {"schema": 1, "algorithm": "fedavg", "config": {}, "data": {"sites": {}}, "rounds": []}
    for environment in ({"env": "prod", "job": "another"}, {"env": "sim"}, {"env": "sim", "job": note["job"]}):
        (tmp_path / "results.json").write_text(json.dumps(results | {"environment": environment}))
        assert start(tmp_path, resume=True)[0] == "job-1 did not end well"
    results |= {"environment": {"env": "prod", "job": note["job"]}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert production.run_in_production(CONFIG, tmp_path, kit=tmp_path, resume=True) == results
