"""Runs whose files are damaged, gone or cannot be removed."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from small_run import small, start
from tiny import same

from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.report.page import write_report
from medpfl.runs.folder import state_before


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An experiment's folder and what the run returned. Nothing may change it."""
    out = tmp_path_factory.mktemp("runs") / "fedap"
    return out, start(out, small(alone="yes"))


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 2000])
def test_damaged_results_of_a_finished_run_are_made_again_from_its_state(finished, tmp_path, left):
    out, results = finished
    shutil.copytree(out, tmp_path / "run")
    file = tmp_path / "run" / "results.json"
    file.write_bytes(file.read_bytes()[:left])
    again = start(tmp_path / "run", small(alone="yes"), resume=True)
    assert again["final"] == results["final"]
    assert again["rounds"] == results["rounds"]
    assert json.loads(file.read_text())["final"] == results["final"]


def test_results_that_did_not_keep_up_with_the_runs_end_are_made_again_beside_a_page_of_before(tmp_path):
    """The page is by ``medpfl report`` of the run under way, and no disk had room for the last results."""
    config = small("fedbn", rounds=1)
    whole = start(tmp_path, config)
    before = whole | {"status": "running", "final": None}
    (tmp_path / "results.json").write_text(json.dumps(before))
    write_report([before], tmp_path / "report.html")
    again = start(tmp_path, config, resume=True)
    assert (again["status"], again["final"]) == ("finished", whole["final"])


def test_a_damaged_checkpoint(tmp_path):
    config = small("fedbn", rounds=1)
    whole = start(tmp_path, config)
    last, previous = sorted((tmp_path / "state" / "server").iterdir(), key=lambda file: "previous" in file.name)
    last.write_bytes(last.read_bytes()[:-7])
    again = start(tmp_path, config, resume=True)
    assert again["final"] == whole["final"]
    assert again["failures"] == [
        {"site": "server", "round": 1, "reason": "its last checkpoint was damaged; the run went on from the one before"}
    ]
    for file in (last, previous):
        file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"is damaged.*cannot be resumed"):
        start(tmp_path, config, resume=True)


def test_a_model_that_cannot_be_read_at_the_end_is_said(finished, tmp_path, caplog):
    """Permissions bind no root, so folders stand in for what may not be read."""
    shutil.copytree(finished[0], tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "models" / "site-1.safetensors").unlink()
    for file in (tmp_path / "run" / "state" / "site-1").glob("*-00000*.safetensors"):
        file.unlink()
        file.mkdir()
    with pytest.raises(UserError, match="the site cannot read its state: Is a directory"):
        start(tmp_path / "run", small(alone="yes"), resume=True)
    assert str(tmp_path / "run" / "state" / "site-1") in caplog.text


def test_what_a_site_lacks_at_the_end_is_noted_and_what_is_damaged_left_out(finished, tmp_path, caplog):
    out, whole = finished
    shutil.copytree(out, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()  # as where the run was killed before its page
    state = tmp_path / "run" / "state"
    shutil.rmtree(state / "site-1" / "selected")
    (state / "site-2" / "selected" / "test.json").write_bytes(b"")
    again = start(tmp_path / "run", small(alone="yes"), resume=True)
    assert again["final"] == whole["final"]
    assert list(again["detail"]) == ["site-3"]
    assert "test.json is damaged" in caplog.text
    (note,) = [note for note in again["notes"] if note not in whole["notes"]]
    assert note.startswith("No model with its card and bundle in the folder of site-1:")


def test_a_model_that_is_gone_of_a_finished_run_is_written_again_alone(finished, tmp_path):
    out, whole = finished
    shutil.copytree(out, tmp_path / "run")
    models = tmp_path / "run" / "models"
    (models / "site-2.safetensors").unlink()  # as where a folder of them was copied in part
    (models / "site-1.safetensors").write_bytes(b"somebody's")
    assert start(tmp_path / "run", small(alone="yes"), resume=True)["final"] == whole["final"]
    assert same(load_file(models / "site-2.safetensors"), load_file(out / "models" / "site-2.safetensors"))
    assert (models / "site-1.safetensors").read_bytes() == b"somebody's"


def test_without_its_models_a_finished_run_keeps_its_results(finished, tmp_path, monkeypatch):
    out, _ = finished
    shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "models")
    (tmp_path / "run" / "history.csv").unlink()
    monkeypatch.setattr(Federation, "of", lambda *_: pytest.fail("the data are not needed"))
    start(tmp_path / "run", small(alone="yes"), resume=True)
    for name in ("results.json", "history.csv", "report.html"):
        assert (tmp_path / "run" / name).read_bytes() == (out / name).read_bytes()
    assert (tmp_path / "run" / "models" / "site-3.safetensors").exists()


@pytest.mark.parametrize("gone", ["models", "history.csv", "results.json", "report.html"])
def test_what_is_gone_of_a_finished_run_is_made_again(finished, tmp_path, gone):
    out, whole = finished
    shutil.copytree(out, tmp_path / "run")
    (shutil.rmtree if gone == "models" else Path.unlink)(tmp_path / "run" / gone)
    again = start(tmp_path / "run", small(alone="yes"), resume=True)
    assert again["final"] == whole["final"]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == sorted(file.name for file in out.iterdir())
    for file in (out / "models").iterdir():
        assert same(load_file(tmp_path / "run" / "models" / file.name), load_file(file))


def test_overwriting_begins_anew_wherever_the_state_is_kept(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    state = tmp_path / "run" / "state"
    state.rename(tmp_path / "scratch")
    state.symlink_to(tmp_path / "scratch")
    assert state_before(small(alone="yes"), tmp_path / "run", resume=False, overwrite=True) is None
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_run_that_cannot_be_removed_is_not_taken_for_the_new_one(finished, tmp_path, monkeypatch):
    def refused(path, **how):
        raise PermissionError(13, "Permission denied", f"{path}/server/server.safetensors")

    shutil.copytree(finished[0], tmp_path / "run")
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: ignore_errors or refused(path))
    with pytest.raises(UserError, match=r"run/state: cannot be removed \(server\.safetensors: Permission denied\)"):
        start(tmp_path / "run", small(alone="yes"), overwrite=True)


@pytest.mark.slow
def test_models_of_a_run_whose_state_is_gone_are_not_another_runs(finished, tmp_path):
    out, whole = finished
    shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "state")
    (tmp_path / "run" / "results.json").unlink()
    for file in (tmp_path / "run" / "models").iterdir():
        file.write_bytes(b"an earlier run's")
    assert start(tmp_path / "run", small(alone="yes"))["final"] == whole["final"]
    for file in (out / "models").iterdir():
        assert same(load_file(tmp_path / "run" / "models" / file.name), load_file(file))
