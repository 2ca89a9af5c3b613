"""Sites that join a finished run: what they start with, by hand, and what they report."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from tiny import Net, config, images, plan_of, same, sites_of
from typer.testing import CliRunner

from medpfl.algorithms import fedimpres
from medpfl.algorithms.fedap.statistics import named_statistics
from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted, UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.core.lock import run_folder
from medpfl.core.messages import named
from medpfl.core.moments import input_statistics
from medpfl.core.seeding import generator
from medpfl.core.statefile import read_state, serialised_bytes
from medpfl.data.inputs import stored_images
from medpfl.data.sites import open_source
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.newcomers import joined_results
from medpfl.report.terminal_joined import print_joined
from medpfl.runs.join import join
from medpfl.server.newcomer import Welcome
from medpfl.server.rounds import ServerState
from medpfl.server.weighing import pop_sent
from medpfl.site.adapt import adapt
from medpfl.site.answer import answer
from medpfl.site.newcomer import misfit, repeat_shared_heads, take_statistics
from medpfl.tasks import TASKS
from medpfl.training.loop import plain_objective, train_epochs

SMALL_VIT = {"hidden_size": 12, "mlp_dim": 12, "num_layers": 2, "num_heads": 3}
HELD_OUT = {"held_out": "hospital-5,hospital-6"}


def finished(folder, run_config):
    """Runs a federation and leaves its checkpoint as a run's folder has it; returns the federation and the state."""
    federation = Federation.of(run_config)
    server = folder / "state" / "server"
    server.mkdir(parents=True)
    state = run_in_process(federation.plan(), sites_of(federation), federation.model, workers=1, checkpoint=server)
    return federation, state


def begun(federation, server, data, **plan) -> SimpleNamespace:
    """A newcomer before it trains: its model's state, its row, and what it sent and received."""
    newcomer = federation.newcomer("new", federation.source, data, Path("nowhere"))
    welcome = Welcome(replace(plan_of(federation), **plan), server, federation.input_format(), 1)
    model, sent, received, statistics = federation.model(), 0, 0, None
    if (question := welcome.question()) is not None:
        answer = newcomer.handle(question, model)
        sent, received = serialised_bytes(answer.tensors), serialised_bytes(question.tensors)
        statistics = pop_sent("statistics", answer)
    message, row = welcome.offer(statistics)
    newcomer.begin(model, message.shared)
    received += serialised_bytes(message.tensors)
    return SimpleNamespace(state=model.state_dict(), row=row, sent_bytes=sent, received_bytes=received)


def after(federation, shared, **fields):
    """A server's state after the last round, with these shared states."""
    return ServerState(phase="done", samples=dict.fromkeys(shared, 10), shared=shared, **fields)


def more_classes(site, seed):
    data = images()
    return replace(data, labels={part: labels + 2 for part, labels in data.labels.items()})


def statistics(*means):
    one = torch.ones(1, dtype=torch.float64)
    return [named_statistics({"norm": (mean * one, one)}) for mean in means]


def test_a_row_without_an_own_share_is_by_distance():
    mixer = config("fedap").mixer
    row = mixer.row_of(statistics(1.0, 4.0), statistics(0.0)[0])
    assert row.tolist() == pytest.approx([0.8, 0.2])  # 1/1 and 1/4
    assert mixer.row_of(statistics(2.0, 5.0, 2.0), statistics(2.0)[0]).tolist() == pytest.approx([0.5, 0, 0.5])


def test_a_fedavg_newcomer_has_the_common_model(tmp_path):
    federation, state = finished(tmp_path, config("fedavg", rounds=2))
    found = begun(federation, state, images())
    common = federation.model()
    federation.split.load_shared(common, state.shared["site-2"])
    assert same(found.state, common.state_dict())
    assert sum(found.row.values()) == pytest.approx(1)
    assert found.sent_bytes == 0
    assert found.received_bytes == serialised_bytes(state.shared["site-1"])


def test_uniform_is_the_mean(tmp_path):
    federation = Federation.of(config("fedap", mixing="uniform"))
    names = federation.config.site_names
    shared = {n: {k: torch.full_like(t, i) for k, t in federation.initial_shared.items()} for i, n in enumerate(names)}
    found = begun(federation, after(federation, shared), images())
    assert list(found.row.values()) == pytest.approx([1 / 3] * 3)
    assert torch.allclose(found.state["fc1.weight"], torch.ones(6, 16))
    assert found.sent_bytes == 0


def test_fedap_weighs_the_sites_by_its_own_statistics_under_f():
    federation, data = Federation.of(config("fedap")), images(seed=3)
    f = federation.model().state_dict()
    model = federation.model()
    own = input_statistics(model, batch_norm_layers(model), (x for x, _ in data.batches("train", 4)))
    mean, variance = own["norm"]
    far = torch.zeros(6, dtype=torch.float64)
    far[0] = 1.0
    steps = {f"site-{i + 1}": step for i, step in enumerate((1, 2, 4))}
    known = {site: named_statistics({"norm": (mean + step * far, variance)}) for site, step in steps.items()}
    shared = {n: {k: torch.full_like(t, i) for k, t in federation.initial_shared.items()} for i, n in enumerate(known)}
    found = begun(federation, after(federation, shared, kept={"statistics": known}), data, pretrained=f)
    assert list(found.row.values()) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert torch.allclose(found.state["fc2.bias"], torch.full((3,), 2 / 7 + 2 / 7))
    assert found.sent_bytes == serialised_bytes(named("statistics", named_statistics(own)))
    assert found.received_bytes == serialised_bytes(f) + serialised_bytes(shared["site-1"])


def test_batch_norm_is_the_first_models_with_statistics_of_the_own_data(tmp_path):
    federation, state = finished(tmp_path, config("fedbn", rounds=2))
    data = images(train=29, seed=5)
    found = begun(federation, state, data).state
    first = federation.model().state_dict()
    for name in ("norm.weight", "norm.bias", "norm.num_batches_tracked"):
        assert torch.equal(found[name], first[name])
    x = torch.cat([x for x, _ in data.batches("train", 29)]).flatten(1)
    inputs = x @ found["fc1.weight"].T + found["fc1.bias"]
    assert torch.allclose(found["norm.running_mean"], inputs.mean(0), atol=1e-5)
    assert torch.allclose(found["norm.running_var"], inputs.var(0, correction=1), rtol=1e-4)


def test_statistics_are_those_that_each_layer_sees_in_use():
    model = torch.nn.Sequential(Net(), torch.nn.BatchNorm1d(3))
    data = images(train=40)
    take_statistics(model, data)
    seen = input_statistics(model, batch_norm_layers(model), (x for x, _ in data.batches("train", 7)), unbiased=True)
    for path, layer in batch_norm_layers(model).items():
        assert torch.allclose(layer.running_mean.double(), seen[path][0], atol=1e-5)
        assert torch.allclose(layer.running_var.double(), seen[path][1], rtol=1e-4)


def test_a_newcomers_running_statistics_are_as_torchs_own():
    """One batch of all samples with momentum 1 leaves in torch what a newcomer takes; of few samples that shows."""
    data = images(train=5)
    own, torchs = Net(), Net()
    torchs.load_state_dict(own.state_dict())
    torchs.norm.momentum = 1.0
    torchs.train()(next(data.batches("train", 5))[0])
    take_statistics(own, data)
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(own.norm, name), getattr(torchs.norm, name), rtol=1e-5)


@pytest.mark.parametrize(("p", "sources"), [(0.6, {0: 2, 1: 2}), (0.34, {0: 1})])
def test_personal_heads_repeat_the_shared_ones_in_order(p, sources):
    federation = Federation.of(
        make_config(algorithm="vit-heads", settings={"p": p}, model_args=SMALL_VIT, sites=2, device="cpu")
    )
    model = federation.model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    repeat_shared_heads(model, federation.split)
    size, hidden = 4, 12
    for block in range(2):
        key = f"blocks.{block}.attn"
        qkv, out = model.state_dict()[f"{key}.qkv.weight"], model.state_dict()[f"{key}.out_proj.weight"]
        for head in range(3):
            of = sources.get(head, head)
            for part in range(3):
                old = before[f"{key}.qkv.weight"][part * hidden + of * size : part * hidden + (of + 1) * size]
                assert torch.equal(qkv[part * hidden + head * size : part * hidden + (head + 1) * size], old)
            columns = before[f"{key}.out_proj.weight"][:, of * size : (of + 1) * size]
            assert torch.equal(out[:, head * size : (head + 1) * size], columns)


def test_local_and_fedper_begin_with_the_first_models_part(tmp_path):
    federation, state = finished(tmp_path / "local", config("local", rounds=1))
    assert same(begun(federation, state, images()).state, federation.model().state_dict())
    federation, state = finished(tmp_path / "fedper", config("fedper", rounds=1))
    found, first = begun(federation, state, images()).state, federation.model().state_dict()
    assert torch.equal(found["fc2.weight"], first["fc2.weight"])
    assert torch.equal(found["fc1.weight"], state.shared["site-1"]["fc1.weight"])


def test_the_best_epoch_is_kept_and_none_may_be_the_best():
    run_config = config("fedbn", settings={"lr": 0.3})
    model, data = Federation.of(run_config).model(), images(train=31, validation=31)
    kept, found = adapt(model, data, run_config, "new", 6)
    scores = [measured["accuracy"] for measured in found]
    assert len(scores) == 7
    assert kept == scores.index(max(scores)) > 0
    assert TASKS["classification"].evaluate(model, data, "validation") == found[kept]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert adapt(model, data, config("fedbn", settings={"lr": 40.0}), "new", 2)[0] == 0
    assert same(model.state_dict(), before)


def test_training_that_diverges_is_said(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    with pytest.raises(UserError, match="hospital-5: the training loss became nan: lower the learning rate"):
        join("fedbn", tmp_path, {"settings": {"lr": 1e30}}, tmp_path)


def test_the_model_is_left_where_only_the_rival_diverges(tmp_path):
    federation, state = finished(tmp_path, config("fedavg", rounds=1))
    newcomer = federation.newcomer("new", federation.source, images(), tmp_path / "new")
    newcomer.first["fc2.weight"] *= 1e38
    message, _ = Welcome(plan_of(federation), state, federation.input_format(), 2).offer(None)
    update = newcomer.handle(message, federation.model())
    found = update.metrics
    assert (found["alone"], found["alone_epoch"], found["alone_validation"]) == (None, None, [])
    model = federation.model()
    model.load_state_dict(read_state(tmp_path / "new" / "selected" / "model.safetensors")[0])
    assert TASKS["classification"].evaluate(model, images(), "test") == found["adapted"]
    results = joined_results(
        plan_of(federation),
        state,
        model,
        2,
        Welcome(plan_of(federation), state, federation.input_format(), 2).run(["new"], lambda _: [update]),
    )
    assert results["mean"]["alone"]["accuracy"] is None
    console = Console(record=True, width=120)
    print_joined(results, console)
    assert "new" in console.export_text()


def test_data_are_tried_out_once_and_by_a_batch(tmp_path, monkeypatch):
    federation, state = finished(tmp_path, config("f-fedap", rounds=2))
    newcomer = federation.newcomer("new", federation.source, images(), tmp_path / "new")
    model, tried = federation.model(), []
    whole = newcomer.data.batches
    monkeypatch.setattr(newcomer.data, "batches", lambda part, n: tried.append((part, n)) or whole(part, n))
    welcome = Welcome(plan_of(federation), state, federation.input_format(), 1)
    question = welcome.question()
    newcomer.handle(question, model)
    newcomer.handle(question, model)
    assert [n for part, n in tried if part == "test"] == [2]


def test_the_runs_class_names_are_text_or_refused(tmp_path):
    federation, state = finished(tmp_path, config("f-fedap", rounds=2))
    newcomer = federation.newcomer("new", federation.source, images(), tmp_path / "new")
    newcomer.delivery = replace(newcomer.delivery, inputs=stored_images(("0", "1", "2"), 1, 4, 4))
    ours = federation.input_format() | {"classes": ["a", "$__import__('os').abort()", "c"]}
    question = Welcome(plan_of(federation), state, ours, 1).question()
    assert re.match(
        r"the run's classes\[1\]: .* begins with '\$'", answer(newcomer, question, federation.model()).reason
    )
    assert newcomer.delivery.inputs.classes == ("0", "1", "2")


def test_a_full_gpu_is_no_misfit(tmp_path, monkeypatch):
    federation, state = finished(tmp_path, config("fedbn", rounds=1))
    newcomer = federation.newcomer("new", federation.source, images(), tmp_path / "new")
    message, _ = Welcome(plan_of(federation), state, federation.input_format(), 1).offer(None)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(newcomer.data, "batches", full)
    assert answer(newcomer, message, federation.model()).reason.startswith("OutOfMemoryError in task 'join'")


def test_without_validation_samples_the_last_epoch_is_kept():
    run_config = config("fedbn")
    model, data = Federation.of(run_config).model(), images(validation=0)
    assert adapt(model, data, run_config, "new", 2) == (2, [None] * 3)


TINY = ["local", "fedavg", "fedprox", "fedbn", "fedper", "lg-fedavg", "fedap", "d-fedap", "f-fedap"]
TINY += ["fedreg", "vhl", "fedvss"]


@pytest.mark.parametrize("algorithm", TINY)
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


SAMPLE = {"sites": 2, "held_out": 1, "rounds": 1, "local_epochs": 1, "train_fraction": 0.03, "device": "cpu"}


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


def npz(file, classes, shape=(28, 28)) -> str:
    """A file of one's own, whose classes are numbers."""
    rng = np.random.default_rng(0)
    parts = {f"{part}_images": rng.integers(0, 255, (33, *shape), dtype=np.uint8) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.arange(33) % classes for part in ("train", "val", "test")}
    np.savez(file, **parts, **labels)
    return str(file)


def test_data_of_another_form_are_refused_once_for_each_site(tmp_path, caplog):
    finished(tmp_path / "run", make_config(algorithm="local", **SAMPLE))
    for other, words in (
        (npz(tmp_path / "four.npz", 4), "its number of classes is not the run's, 11: it has 4"),
        (npz(tmp_path / "colour.npz", 11, (28, 28, 3)), "its number of channels is not the run's, 1: it has 3"),
        (npz(tmp_path / "large.npz", 11, (32, 32)), "its image size is not the run's, 28: it has 32"),
    ):
        with pytest.raises(UserError) as refused:
            join("local", tmp_path / "run", {"data": other, "sites": 2}, tmp_path)
        assert str(refused.value) == f"new-1: {words}\nnew-2: {words}"
    with pytest.raises(UserError, match=r"--data-arg classes: .*four.npz is an npz file, .*; leave it out"):
        said = {"data": str(tmp_path / "four.npz"), "data_args": {"classes": ["a", "b", "c", "d"]}}
        join("local", tmp_path / "run", said, tmp_path)
    assert not caplog.records  # the terminal has them already


def test_numbered_classes_are_those_of_the_run_by_number(tmp_path):
    numbered = npz(tmp_path / "own.npz", 11)
    fields = {**SAMPLE, "held_out": 0, "model": "lenet5"}
    organs = "organamnist-sample"
    finished(tmp_path / "named", make_config(algorithm="fedbn", **fields))
    finished(tmp_path / "numbers", make_config(algorithm="fedbn", data=numbered, **fields | {"train_fraction": 1.0}))
    for run, data in (("named", numbered), ("numbers", organs)):
        found = join("fedbn", tmp_path / run, {"data": data, "local_epochs": 1}, tmp_path / f"to-{run}")
        assert list(found["sites"]) == ["new-1"]
        folder = tmp_path / f"to-{run}" / "joined" / "new-1" / "selected"
        card = json.loads((folder / "card.json").read_text())
        assert card["classes"] == open_source(make_config(algorithm="local", data=organs)).dataset.classes
        assert '"pancreas"' in (folder / "bundle" / "configs" / "metadata.json").read_text()


def test_an_npz_file_joins_a_run_on_folders(tmp_path):
    rng = np.random.default_rng(0)
    for centre in ("north", "south"):
        for name in ("glaucoma", "normal"):
            (folder := tmp_path / "fundus" / centre / name).mkdir(parents=True)
            for i in range(10):
                Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(folder / f"{i}.png")
    look = {"size": 28, "channels": "grey", "fit": "pad"}
    fields = {"model": "lenet5", "rounds": 1, "local_epochs": 1, "sites": 2, "partition": "natural", "device": "cpu"}
    finished(tmp_path / "run", make_config(algorithm="fedbn", data=str(tmp_path / "fundus"), data_args=look, **fields))
    said = {"data": npz(tmp_path / "own.npz", 2), "local_epochs": 1}
    join("fedbn", tmp_path / "run", said, tmp_path)
    card = json.loads((tmp_path / "joined" / "new-1" / "selected" / "card.json").read_text())
    assert card["classes"] == ["glaucoma", "normal"]


def test_misfit_says_what_differs_and_apart_from_it_what_the_site_has():
    run = {"in_channels": 1, "num_classes": 2, "image_size": 28, "classes": ["ill", "well"]}
    assert misfit(run, run) is None
    assert misfit(run, {"num_classes": 2}) is None
    reason, own = misfit(run, {**run, "classes": ["well", "ill"]})
    assert "in another order (--data-arg classes=... gives it, for scans a manifest.json too)" in reason
    assert own == "it has well, ill, the run ill, well"
    assert misfit(run, {"num_classes": 3, "classes": ["a", "b", "c"]})[0] == "its number of classes is not the run's, 2"


def test_the_command_prints_a_row_for_every_site(tmp_path):
    finished(tmp_path, config("fedbn", rounds=1, **HELD_OUT))
    done = CliRunner().invoke(app, ["run", "fedbn", "--join", str(tmp_path), "--local-epochs", "1"])
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
