"""Batch norm's running statistics beside those of its inputs: by hand, on the page, and where there are none."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import config

from medpfl.config.run import make_config
from medpfl.engine.federation import Federation
from medpfl.models.blend import blended
from medpfl.report.page_running import running_part
from medpfl.runs.experiment import run_experiment
from medpfl.runs.running_statistics import running_statistics


def start(out, algorithm, **fields):
    fields = {"model": "lenet5", "sites": 3, "rounds": 2, "train_fraction": 0.1, "device": "cpu", **fields}
    return run_experiment(make_config(algorithm=algorithm, alone="no", **fields), out, env="inprocess", threads=1)


def test_a_run_that_weighs_by_statistics_has_them(tmp_path):
    found = start(tmp_path, "f-fedap")["running_statistics"]
    assert list(found["correlation"]) == list(found["channels"]) == ["bn1", "bn2"]
    assert all(-1 <= value <= 1 for of in found["correlation"].values() for value in of.values())
    state = load_file(tmp_path / "models" / "site-1.safetensors")
    kept = found["channels"]["bn2"]
    assert kept["running_mean"] == pytest.approx(state["bn2.running_mean"].tolist())
    assert np.square(kept["running_deviation"]) == pytest.approx(state["bn2.running_var"].numpy(), rel=1e-5)
    page = (tmp_path / "report.html").read_text()
    assert "Batch norm&#39;s running statistics beside those of its inputs" in page
    assert page.count("running against that of the input.") == 4


def test_other_runs_have_none(tmp_path):
    assert "running_statistics" not in start(tmp_path, "fedbn")


@pytest.fixture
def federation(tmp_path):
    """Two sites whose inputs to the layer have means of 1 and -1 in every second channel, and other running ones."""
    federation = Federation.of(config("f-fedap", sites=2))
    for site, sign in (("site-1", 1), ("site-2", -1)):
        model = federation.model()
        state = model.state_dict()
        state["fc1.weight"].zero_()
        state["fc1.bias"].copy_(torch.tensor([1.0, 0, 1, 0, 1, 0]))
        state["norm.running_mean"].copy_(sign * torch.tensor([2.0, 0, 2, 0, 2, 0]))
        save_file(state, tmp_path / f"{site}.safetensors")
    return federation


def test_by_hand(federation, tmp_path):
    found = running_statistics(federation, tmp_path)
    # One site's go together, the other's against each other; no input varies, so that deviations have no correlation.
    assert found["correlation"]["norm"] == {"mean": pytest.approx(0), "deviation": None}
    assert found["site"] == "site-1"
    assert found["channels"]["norm"]["mean"] == [1, 0, 1, 0, 1, 0]
    assert found["channels"]["norm"]["running_mean"] == [2, 0, 2, 0, 2, 0]
    assert found["channels"]["norm"]["deviation"] == [0] * 6
    table = running_part(found).table
    assert table.rows == [("norm", "0.00", "–")]


def test_why_there_are_none_is_said(federation, tmp_path, monkeypatch):
    monkeypatch.setattr("medpfl.runs.running_statistics.MOST_SAMPLES", 3)
    assert "training samples, more than 3" in running_statistics(federation, tmp_path)
    monkeypatch.undo()
    assert "there is no model with any" in running_statistics(federation, tmp_path / "empty")
    state = federation.model().state_dict()
    save_file({k: v.clone() for k, v in blended(state, state, 0.5).items()}, tmp_path / "site-2.safetensors")
    assert "site-2 uses two networks together" in running_statistics(federation, tmp_path)
