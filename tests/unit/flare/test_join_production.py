"""What a folder keeps of a job by which sites join; here the server's answers are given."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from safetensors.torch import save_file
from tiny import Net, config
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import Interrupted, UserError
from medpfl.flare.admin.kit import plan_kit
from medpfl.flare.admin.remote import Ended, Unknown
from medpfl.flare.job.folder import read_job
from medpfl.runs import join_job as join

SAID = {"data": "tiny:site_data", "names": ("new-1",), "sites": 1, "local_epochs": 2}
RESULTS = {"status": "finished", "run": {"algorithm": "fedbn"}, "sites": {}}


@dataclass
class Server:
    """In the place of a FLARE system: keeps what is submitted, and ends as it is told to."""

    jobs: dict[str, str] = field(default_factory=dict)
    timeouts: list[float] = field(default_factory=list)
    lost_answer: bool = False
    ends: BaseException | None = None
    again: str = ""

    def find(self, token):
        return self.jobs.get(token)

    def submit(self, recipe, sites, token):
        with TemporaryDirectory() as folder:
            recipe.export(folder)
            [file] = Path(folder).rglob("config_fed_server.json")
            self.timeouts.append(json.loads(file.read_text())["workflows"][0]["args"]["run_config"]["timeout"])
        self.jobs[token] = f"job-{len(self.jobs) + 1}"
        if self.lost_answer:
            raise KeyboardInterrupt
        return self.jobs[token]

    def complete(self, job, folder, watch, *, results_file):
        if self.ends:
            raise self.ends
        return RESULTS | {"job": job}


@pytest.fixture
def server(monkeypatch):
    found = Server()

    def system(kit, *, again):
        found.again = again
        return found

    monkeypatch.setattr(join, "System", system)
    return found


@pytest.fixture
def run(tmp_path):
    """The folder of a run at a real federation."""
    folder = tmp_path / "a run"
    folder.mkdir()
    note = {"job": "id", "experiment": "first-a1b2c3", "config": config("fedbn").model_dump(mode="json")}
    (folder / "job.json").write_text(json.dumps(note))
    return folder


def start(run, out, **said):
    return join.join_in_production("fedbn", run, SAID | said, out, kit=run)


def test_a_join_that_is_no_longer_followed_is_followed_again(server, run, tmp_path):
    out = tmp_path / "out"
    server.ends = KeyboardInterrupt()
    with pytest.raises(
        Interrupted, match=r"job job-1 goes on at the server: the same command follows it again, .*job-1"
    ) as stopped:
        start(run, out)
    how = shlex.split(str(stopped.value).split("`")[1])
    assert how == ["nvflare", "job", "abort", "job-1", "--startup-kit", str(run), "--force"]
    note = json.loads((out / "join-job.json").read_text())
    assert (note["job"], note["experiment"]) == ("job-1", "first-a1b2c3")
    assert "token" not in note
    server.ends = UserError("no answer")
    with pytest.raises(UserError, match="no answer"):
        start(run, out)
    server.ends = None
    assert start(run, out)["job"] == "job-1"
    assert json.loads((out / "join.json").read_text())["job"] == "job-1"
    assert len(server.jobs) == 1
    assert start(run, out)["job"] == "job-2"  # what is fetched is done


def test_results_name_start_weights_by_their_fingerprint_and_not_by_their_place(server, run, tmp_path, monkeypatch):
    file = tmp_path / "of-the-server" / "start.safetensors"
    file.parent.mkdir()
    save_file(Net().state_dict(), file)
    note = json.loads((run / "job.json").read_text())
    note["config"]["init"] = str(file)
    (run / "job.json").write_text(json.dumps(note))
    monkeypatch.setitem(RESULTS, "run", {"algorithm": "fedbn", "init": "sha256:of-the-server-s"})
    assert start(run, tmp_path / "out")["config"]["init"] == "sha256:of-the-server-s"
    assert str(tmp_path) not in (tmp_path / "out" / "join.json").read_text()
    file.unlink()
    words = r"--join .*: that run began from the start weights in .*start.safetensors, .* no such file .* --init"
    with pytest.raises(UserError, match=words):
        start(run, tmp_path / "again")


def test_a_stop_while_submitting_makes_no_second_job(server, run, tmp_path):
    server.lost_answer = True
    with pytest.raises(Interrupted, match="the same command follows it if the server has it"):
        start(run, tmp_path / "out")
    server.lost_answer = False
    assert start(run, tmp_path / "out")["job"] == "job-1"
    assert len(server.jobs) == 1


def test_a_job_that_ended_badly_is_told_once_and_then_submitted_anew(server, run, tmp_path):
    server.ends = Ended("job-1: the training loss became nan")
    with pytest.raises(UserError, match="became nan"):
        start(run, tmp_path / "out")
    server.ends = None
    assert start(run, tmp_path / "out", settings={"lr": 0.01})["job"] == "job-2"


def test_another_join_does_not_take_the_results_of_one_under_way(server, run, tmp_path):
    out = tmp_path / "out"
    server.ends = KeyboardInterrupt()
    with pytest.raises(Interrupted):
        start(run, out)
    server.ends = Unknown("FLARE's server knows no job job-1")
    with pytest.raises(UserError, match=r"knows no job job-1: remove .*join-job.json to join anew"):
        start(run, out)
    server.ends = None
    for change, words in (({"settings": {"lr": 0.5}}, "config"), ({"names": ("new-2",)}, "newcomers")):
        with pytest.raises(UserError, match=f"job job-1, .* has another {words}: give its command again, or .*--out"):
            start(run, out, **change)
    assert start(run, out)["job"] == "job-1"


def test_the_new_sites_get_the_time_that_they_are_given(server, run, tmp_path):
    start(run, tmp_path / "out")
    start(run, tmp_path / "out", timeout=9.0)
    assert server.timeouts == [3600.0, 9.0]
    with pytest.raises(UserError, match="timeout"):
        start(run, tmp_path / "out", timeout=-1.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged: job, experiment and config are needed"),
        ('{"job": "1", "experiment": "a"}', "is damaged: job, experiment and config are needed"),
        (
            '{"job": "1", "experiment": "a", "config": {"sites": 2}}',
            "no run of this version .*algorithm",
        ),
        (
            '{"job": "1", "experiment": "a", "config": {"algorithm": "fedbn", "old": 1}}',
            "no run of this version .*old:",
        ),
        ('{"job": "1", "experiment": "a", "config": 3}', "no run of this version of the package"),
    ],
)
def test_a_damaged_or_older_note_is_said_in_a_line(server, run, tmp_path, content, words):
    (run / "job.json").write_text(content)
    with pytest.raises(UserError, match=rf"job\.json:? .*{words}") as caught:
        start(run, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_job_to_join_can_be_read_before_it_is_admitted(run, tmp_path, kit):
    said = ["--data", "organamnist-sample", "--sites", "east,west", "--timeout", "60"]
    command = ["export", "fedbn", "--join", run, "--job", tmp_path / "jobs" / "newcomers", *said]
    done = CliRunner().invoke(app, list(map(str, command)))
    assert done.exit_code == 0, done.output
    folder = tmp_path / "jobs" / "newcomers"
    assert set(json.loads((folder / "meta.json").read_text())["deploy_map"]) == {"app_server", "app_east", "app_west"}
    job = read_job(folder)
    assert (job.name, job.config.data, job.allowed) == ("newcomers", "organamnist-sample", {})
    assert any("'organamnist-sample'" in note for note in plan_kit(kit, {}, job).notes)
