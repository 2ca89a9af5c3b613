"""Sites that join finished runs of every algorithm, by call and by command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from joined_run import HELD_OUT, SAMPLE, finished
from safetensors.torch import save_file
from tiny import Net, config, images, sites_of
from typer.testing import CliRunner

from medpfl.algorithms import fedimpres
from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted, UserError
from medpfl.core.lock import run_folder
from medpfl.core.seeding import generator
from medpfl.core.statefile import read_state, serialised_bytes
from medpfl.data.kinds.npz.catalog import find
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.runs.experiment import run_experiment
from medpfl.runs.join import join
from medpfl.tasks import TASKS
from medpfl.training.loop import plain_objective, train_epochs

SMALL_VIT = {"hidden_size": 12, "mlp_dim": 12, "num_layers": 2, "num_heads": 3}


def more_classes(site, seed):
    data = images()
    return replace(data, labels={part: labels + 2 for part, labels in data.labels.items()})


QUICK = ["local", "fedbn", "fedap", "f-fedap", "vhl"]
SLOW = ["fedavg", "fedprox", "fedper", "lg-fedavg", "d-fedap", "fedreg", "fedvss"]


@pytest.mark.parametrize("algorithm", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_algorithm_lets_sites_join(tmp_path, algorithm):
    settings = {}
    if algorithm in ("fedap", "d-fedap"):
        save_file(Net().state_dict(), tmp_path / "f.safetensors")
        settings["pretrain"] = str(tmp_path / "f.safetensors")
    federation, _ = finished(tmp_path, config(algorithm, settings=settings, rounds=2, **HELD_OUT))
    found = join(algorithm, tmp_path, {"local_epochs": 2}, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "join.json").read_text()) == json.loads(json.dumps(found))
    assert list(found["sites"]) == ["hospital-5", "hospital-6"]
    for name, site in found["sites"].items():
        assert sum(site["weights"].values()) == (0 if algorithm == "local" else pytest.approx(1))
        assert (site["sent_bytes"] > 0) == algorithm.endswith("fedap")
        assert {site[which]["n"] for which in ("received", "adapted", "alone")} == {7}
        assert len(site["validation"]) == 3
        model = federation.model()
        model.load_state_dict(read_state(tmp_path / "out" / "joined" / name / "selected" / "model.safetensors")[0])
        data = federation.source.held_out(federation.device)[name]
        assert TASKS["classification"].evaluate(model, data, "test") == site["adapted"]


def test_alone_is_training_from_the_first_model_in_the_same_order(tmp_path):
    federation, _ = finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    found = join("fedbn", tmp_path, {"local_epochs": 1}, tmp_path / "out")["sites"]["hospital-5"]
    model, data = federation.model(), federation.source.held_out(federation.device)["hospital-5"]
    if found["alone_epoch"]:
        order = generator(0, "hospital-5", "join", 1, "shuffle")
        run = federation.config
        train_epochs(model, data, run.trainer, 1, order, plain_objective(model, run.learned.loss))
    assert found["alone"] == TASKS["classification"].evaluate(model, data, "test")


@pytest.mark.slow
def test_vit_heads_join(tmp_path):
    finished(tmp_path, make_config(algorithm="vit-heads", model_args=SMALL_VIT, **SAMPLE))
    found = join("vit-heads", tmp_path, {"local_epochs": 1}, tmp_path)
    assert list(found["sites"]) == ["site-3"]
    assert [rule["what"] for rule in found["rules"]["personal"]] == ["copies of the shared heads, in order"]


def test_fedimpres_newcomers_train_with_the_last_impression(tmp_path, monkeypatch):
    settings = {"warmup": 1, "images": 8, "admm_iterations": 1, "inner_steps": 1}
    fields = {"algorithm": "fedimpres", "model": "lenet5", "settings": settings, **SAMPLE, "rounds": 2}
    _, state = finished(tmp_path, make_config(**fields))
    assert "images" in state.common["impression"]

    def unused(*_):
        raise AssertionError("images to start an impression from are read")

    monkeypatch.setattr(fedimpres, "start_images", unused)
    found = join("fedimpres", tmp_path, {"local_epochs": 1}, tmp_path)
    [site] = found["sites"].values()
    assert site["received_bytes"] > serialised_bytes(state.shared["site-1"])  # the impression came too
    assert site["adapted"]["n"] == site["samples"]["test"]


def test_new_data_are_given_by_their_own_name(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1))
    found = join("fedbn", tmp_path, {"data": "tiny:site_data", "sites": 2, "local_epochs": 1}, tmp_path)
    assert list(found["sites"]) == ["new-1", "new-2"]


def test_data_that_the_runs_sites_trained_on_are_told(tmp_path):
    fields = {**SAMPLE, "held_out": 0, "model": "lenet5", "data": "organamnist-sample"}
    run_experiment(make_config(algorithm="fedbn", **fields), tmp_path / "run", env="inprocess", threads=1)
    same = ["run", "fedbn", "--join", str(tmp_path / "run"), "--data", "organamnist-sample", "--local-epochs", "1"]
    said = CliRunner().invoke(app, [*same, "--out", str(tmp_path / "out")])
    assert said.exit_code == 0 and "Warning: The run's sites trained on these data" in said.output
    (note,) = json.loads((tmp_path / "out" / "join.json").read_text())["notes"]
    assert "its figures are not of new ones" in note
    with np.load(find("organamnist-sample")) as file:
        np.savez(tmp_path / "other.npz", **{key: file[key][:60] for key in file})
    other = join("fedbn", tmp_path / "run", {"data": str(tmp_path / "other.npz"), "local_epochs": 1}, tmp_path / "new")
    assert "notes" not in other


def test_new_data_join_a_run_of_named_sites(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, sites=2, names=("north-1", "south-2")))
    found = join("fedbn", tmp_path, {"data": "tiny:site_data", "local_epochs": 1}, tmp_path)
    assert list(found["sites"]) == ["new-1"]


def test_a_folder_in_use_is_left_alone(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    with run_folder(tmp_path), pytest.raises(UserError, match="is in use by another run"):
        join("fedbn", tmp_path, {}, tmp_path)


def test_what_cannot_be_is_said(tmp_path):
    finished(tmp_path / "a", config("fedbn", rounds=1))
    finished(tmp_path / "b", config("fedbn", rounds=1, **HELD_OUT))
    for algorithm, folder, said, words in (
        ("fedbn", "none", {}, "there is no run in it"),
        ("fedavg", "a", {}, "that run is of fedbn, not fedavg"),
        ("fedbn", "a", {}, "held no centre out; give the new site's data with --data"),
        ("fedbn", "a", {"model": "lenet5"}, "--model lenet5: the run in .* has 'tiny:Net'"),
        ("fedbn", "a", {"model_args": {"dropout": 0.1}}, "--model-arg .*: the run in .* has {}"),
        ("fedbn", "b", {"data_args": {"train": 3}}, "--data-arg: the held-out centres"),
        ("fedbn", "b", {"names": ("new",)}, "--sites: the held-out centres"),
        ("fedbn", "a", {"data": "tiny:site_data", "settings": {"mu": 1.0}}, "--set mu: a new site may choose lr"),
        ("fedbn", "a", {"data": "tiny:site_data", "data_args": {"train": 0}}, "new-1: it has no training sample"),
        ("fedbn", "a", {"data": "organamnist-sample"}, "new-1: its samples do not fit tiny:Net"),
        ("fedbn", "a", {"data": f"{__name__}:more_classes"}, "new-1: its samples do not fit tiny:Net"),
    ):
        with pytest.raises(UserError, match=words):
            join(algorithm, tmp_path / folder, said, tmp_path)


def test_how_long_a_server_waits_is_not_the_runs(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    waits = {"grace": 5.0, "timeout": 60.0, "min_sites": 1, "local_epochs": 1}
    assert join("fedbn", tmp_path, waits, tmp_path / "out")["sites"]


def test_a_run_that_has_not_ended_is_refused(tmp_path):
    federation = Federation.of(config("fedbn", rounds=3))
    server = tmp_path / "state" / "server"
    server.mkdir(parents=True)

    def stop(state):
        if state.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(
            federation.plan(), sites_of(federation), federation.model, workers=1, checkpoint=server, after_step=stop
        )
    with pytest.raises(UserError, match="has not ended, 1 of 3 rounds are done"):
        join("fedbn", tmp_path, {}, tmp_path)


def test_the_command_prints_a_row_for_every_site(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    done = CliRunner().invoke(app, ["run", "--join", str(tmp_path), "--local-epochs", "1"])
    assert done.exit_code == 0, done.output
    assert "hospital-5" in done.output
    assert "Adapted against alone, mean accuracy" in done.output
    assert (tmp_path / "join.json").exists()


def test_a_presets_epochs_are_those_of_a_round(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    (tmp_path / "preset.yml").write_text("local_epochs: 1\nsettings: {lr: 0.1}\n")
    command = ["run", "fedbn", "--join", str(tmp_path), "--preset", str(tmp_path / "preset.yml")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "join.json").read_text())
    assert (results["epochs"], results["config"]["settings"]["lr"]) == (5, 0.1)


def test_a_stopped_join_is_not_told_to_resume(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("medpfl.runs.join.join", stop)
    done = CliRunner().invoke(app, ["run", "fedbn", "--join", str(tmp_path)])
    assert isinstance(done.exception, Interrupted)
    assert str(done.exception) == "stopped; the same command lets the new sites join from the start"
