"""Tracking up to FLARE's receivers; whether they get anything is tested in FLARE's simulator."""

import json
import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType

import pytest
from tiny import config, run

from medpfl.config import make_config
from medpfl.errors import UserError
from medpfl.experiment import run_experiment
from medpfl.flare.export import export_job
from medpfl.flare.tracking import TRACKERS, check_tracker, installed, new_values
from medpfl.server.rounds import ServerState


def test_every_value_once_and_in_order():
    states = [ServerState()]
    run(config("fedbn", sites=2), after_step=states.append)
    told = [value for before, after in pairwise(states) for value in new_values(before, after)]
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
    told = [value for before, after in pairwise(states) for value in new_values(before, after)]
    assert sorted(new_values(ServerState(), states[-1])) == sorted(told)


@pytest.mark.parametrize("tracker", [t for t in TRACKERS if not installed(t)])
def test_a_tracker_that_is_not_installed_is_refused_before_the_run(tracker, tmp_path):
    reason = rf"--track {tracker}: the package {tracker} is not installed here; pip install 'medpfl\[track\]'"
    with pytest.raises(UserError, match=reason):
        export_job(make_config(algorithm="fedbn", sites=2), tmp_path / "job", track=tracker)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker():
    with pytest.raises(UserError, match="--track neptune: use tensorboard, mlflow, wandb or none"):
        check_tracker("neptune")


def test_tracking_is_flares(tmp_path):
    with pytest.raises(UserError, match="--track wandb: FLARE's receivers do the tracking; use --env sim"):
        run_experiment(make_config(algorithm="fedbn", sites=2), tmp_path / "run", env="inprocess", track="wandb")
    assert list(tmp_path.iterdir()) == []


def test_a_job_with_flares_receiver(tmp_path, monkeypatch):
    wandb = ModuleType("wandb")  # FLARE's receiver imports it and needs nothing of it before the job runs
    wandb.__spec__ = ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    job = export_job(make_config(algorithm="fedbn", sites=2), tmp_path / "tracked", track="wandb")
    server = json.loads((job / "app" / "config" / "config_fed_server.json").read_text())
    (receiver,) = server["components"]
    assert receiver["path"] == "nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver"
    assert receiver["args"]["wandb_args"]["project"] == "medpfl"
    assert receiver["args"]["wandb_args"]["name"] == "tracked"
    assert "wandb" not in (job / "app" / "config" / "config_fed_client.json").read_text()
