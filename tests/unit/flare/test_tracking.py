"""Tracking up to FLARE's receivers; whether they get anything is tested in FLARE's simulator."""

import json
import os
import shlex
import shutil
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType

import pytest
from tiny import config, run
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.server_state import ServerState
from medpfl.flare.job.export import export_job
from medpfl.flare.transport.tracking import check_tracker, how_to_see, installed, new_values
from medpfl.runs.experiment import run_experiment
from medpfl.tasks import TASKS

NAMES = [measure.name for measure in TASKS["classification"].measures]


def test_every_value_once_and_in_order():
    states = [ServerState()]
    run(config("fedbn", sites=2), after_step=states.append)
    told = [value for before, after in pairwise(states) for value in new_values(before, after, NAMES)]
    assert len(told) == len(set(told))
    sites = states[-1].history[1]["sites"]
    assert ("site-2", "train_loss", sites["site-2"]["train_loss"], 2) in told
    assert ("site-1", "validation/accuracy", sites["site-1"]["validation"]["accuracy"], 2) in told
    for site in ("site-1", "site-2"):
        for name in ("train_loss", "validation/accuracy", "validation/balanced_accuracy", "validation/auroc"):
            assert [r for s, n, _, r in told if (s, n) == (site, name)] == [1, 2, 3]
    # Weights & Biases drops a value of a round before the last one it has seen.
    rounds = [r for s, _, _, r in told if s == "site-1"]
    assert rounds == sorted(rounds)


def test_a_resumed_job_tells_all_that_went_before():
    states = [ServerState()]
    run(config("fedbn", sites=2), after_step=states.append)
    told = [value for before, after in pairwise(states) for value in new_values(before, after, NAMES)]
    assert sorted(new_values(ServerState(), states[-1], NAMES)) == sorted(told)


@pytest.mark.parametrize("tracker", [t for t in ("mlflow", "wandb") if not installed(t)])
def test_a_tracker_that_is_not_installed_is_refused_before_the_run(tracker, tmp_path):
    reason = rf"--track {tracker}: the package {tracker} is not installed here; pip install 'medpfl\[track\]'"
    with pytest.raises(UserError, match=reason):
        export_job(make_config(algorithm="fedbn", sites=2), tmp_path / "job", track=tracker)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_earlier_runs_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "neptune").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_spec("neptune")
    assert not installed("neptune")


def test_an_unknown_tracker():
    with pytest.raises(UserError, match="--track neptune: use tensorboard, mlflow, wandb or none"):
        check_tracker("neptune")


def test_tracking_is_flares(tmp_path):
    with pytest.raises(UserError, match="--track wandb: FLARE's receivers do the tracking; use --env sim, poc or prod"):
        run_experiment(make_config(algorithm="fedbn", sites=2), tmp_path / "run", env="inprocess", track="wandb")
    assert list(tmp_path.iterdir()) == []


def test_a_job_with_flares_receiver(tmp_path, monkeypatch):
    wandb = ModuleType("wandb")  # FLARE's receiver imports it and needs nothing of it before the job runs
    wandb.__spec__ = ModuleSpec("wandb", None, origin="wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    job = export_job(make_config(algorithm="fedbn", sites=2), tmp_path / "tracked", track="wandb")
    server = json.loads((job / "app" / "config" / "config_fed_server.json").read_text())
    (receiver,) = server["components"]
    assert receiver["path"] == "nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver"
    assert receiver["args"].get("mode", "offline") == "offline"
    assert receiver["args"]["wandb_args"]["project"] == "medpfl"
    assert receiver["args"]["wandb_args"]["name"] == "tracked"
    assert "wandb" not in (job / "app" / "config" / "config_fed_client.json").read_text()


@pytest.mark.parametrize(
    ("options", "expected"), [([], ["nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver"]), (["none"], [])]
)
def test_tensorboard_is_the_default(options, expected, tmp_path):
    job = tmp_path / "mine"
    arguments = ["export", "fedbn", "--sites", "2", "--job", str(job)]
    done = CliRunner().invoke(app, [*arguments, *(["--track", *options] if options else [])])
    assert done.exit_code == 0, done.output
    server = json.loads((job / "app" / "config" / "config_fed_server.json").read_text())
    assert [component["path"] for component in server["components"]] == expected
    # FLARE makes components in this order; the controller turns reports to a tracker's makers off before its import.
    assert list(server).index("workflows") < list(server).index("components")


def test_the_command_that_shows_the_last_run(tmp_path):
    assert how_to_see(tmp_path, "tensorboard") is None
    for age, job in enumerate(("last", "first")):
        folder = tmp_path / "flare" / job / "workspace"
        (folder / "tb_events").mkdir(parents=True)
        (folder / "results.json").write_text("{}")
        os.utime(folder / "results.json", (1000 - age, 1000 - age))
    last = tmp_path / "flare" / "last" / "workspace"
    assert how_to_see(tmp_path, "tensorboard") == f"tensorboard --logdir {last / 'tb_events'}"
    assert how_to_see(tmp_path, "mlflow") is None
    (last / "mlflow.db").touch()
    assert how_to_see(tmp_path, "mlflow") == f"mlflow ui --backend-store-uri sqlite:///{last / 'mlflow.db'}"
    blank = shutil.copytree(tmp_path, tmp_path.with_name("with a blank"))
    events = blank / last.relative_to(tmp_path) / "tb_events"
    assert shlex.split(how_to_see(blank, "tensorboard")) == ["tensorboard", "--logdir", str(events)]
