"""What a folder keeps of its job at a real federation; here the server's answers are given."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from medpfl import production
from medpfl.config import make_config
from medpfl.errors import Interrupted, UserError

CONFIG = make_config(algorithm="fedavg", sites=2, rounds=2)


@dataclass
class Server:
    """In the place of a FLARE system: notes what is submitted, and stops or fails when it is told to."""

    kit: str = "kit"
    experiments: list[str] = field(default_factory=list)
    stop: bool = False
    failed: bool = False

    def submit(self, recipe, sites):
        with TemporaryDirectory() as folder:
            recipe.export(folder)
            [file] = Path(folder).rglob("config_fed_server.json")
            self.experiments.append(json.loads(file.read_text())["workflows"][0]["args"]["experiment"])
        if self.stop:
            raise KeyboardInterrupt
        return f"job-{len(self.experiments)}"

    def has_failed(self, job):
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
    assert start(tmp_path, resume=True)[1] == note | {"job": "job-2"}
    assert server.experiments == [note["experiment"]] * 2


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


def test_results_of_another_run_are_not_the_jobs(server, tmp_path):
    _, note = start(tmp_path)
    results = {"schema": 1, "algorithm": "fedavg", "config": {}, "data": {"sites": {}}, "rounds": []}
    for environment in ({"env": "prod", "job": "another"}, {"env": "sim"}, {"env": "sim", "job": note["job"]}):
        (tmp_path / "results.json").write_text(json.dumps(results | {"environment": environment}))
        assert start(tmp_path, resume=True)[0] == "job-1 did not end well"
    results |= {"environment": {"env": "prod", "job": note["job"]}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert production.run_in_production(CONFIG, tmp_path, kit=tmp_path, resume=True) == results
