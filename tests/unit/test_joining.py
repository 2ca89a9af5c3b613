"""How a site that joins begins: its row, its personal part, its epochs."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from joined_run import HELD_OUT, finished
from rich.console import Console
from tiny import Net, config, images, plan_of, same
from torch.utils.data import DataLoader, TensorDataset

from medpfl import algorithms
from medpfl.algorithms.fedap.statistics import named_statistics
from medpfl.algorithms.mixing_kinds import MeasuredMixing
from medpfl.config.run import make_config
from medpfl.core.channels import Channel, Entry
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.core.messages import named
from medpfl.core.moments import input_statistics, training_inputs
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import SiteLoaders, scale
from medpfl.core.statefile import read_state, serialised_bytes
from medpfl.data.inputs import stored_images
from medpfl.engine.federation import Federation
from medpfl.engine.newcomers import joined_results
from medpfl.report.terminal_joined import print_joined
from medpfl.runs.join import join
from medpfl.server.newcomer import Welcome
from medpfl.server.weighing import pop_sent
from medpfl.site.adapt import adapt
from medpfl.site.answer import answer
from medpfl.site.newcomer import repeat_shared_heads, take_statistics
from medpfl.tasks import TASKS

SMALL_VIT = {"hidden_size": 12, "mlp_dim": 12, "num_layers": 2, "num_heads": 3}


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


def test_a_fedavg_newcomer_is_told_how_much_the_sites_numbers_of_samples_count():
    """30 at most, which is 1.5 times the median."""
    federation = Federation.of(config("fedavg", largest_weight=1.5))
    names = federation.config.site_names
    server = after(federation, dict.fromkeys(names, federation.initial_shared))
    server = replace(server, samples=dict(zip(names, (10, 20, 100), strict=True)))
    found = begun(federation, server, images())
    assert list(found.row.values()) == pytest.approx([1 / 6, 2 / 6, 3 / 6])


class Nearest(MeasuredMixing):
    """By the sites' means of what each has measured, and no more than its author has to say."""

    name, what = "nearest", "the nearest site's"

    def channels(self, run, model, split):
        entries = {"mean": Entry((), (torch.float32,))}
        return (Channel(self.name, True, entries, ("prepare", "statistics"), "a mean", once=True),)

    def measured(self, channel, round_):
        return {"mean": torch.zeros(())}

    def received(self, run, state, fresh):
        return np.eye(run.sites), []

    def matrix(self, run, state):
        return np.eye(run.sites)

    def row_of(self, kept, own):
        near = np.array([1 / float(one["mean"]) for one in kept])
        return near / near.sum()


@pytest.fixture
def nearest(monkeypatch):
    """FedAvg, which can be run with that mixing under a cap on the others' weights."""
    method = algorithms.Algorithm("near", "Near", "", "", mixing=Nearest)
    known = (algorithms.algorithms, algorithms.mixings, algorithms.mechanisms)
    monkeypatch.setattr(algorithms, "OWN", (*algorithms.OWN, method))
    for one in known:
        one.cache_clear()
    yield config("fedavg", mixing="nearest", weight_cap=0.5)
    monkeypatch.undo()
    for one in known:
        one.cache_clear()


@pytest.mark.parametrize("weighs", [False, True])
def test_a_mixing_of_ones_own_without_a_rule_or_a_share_of_its_own(nearest, monkeypatch, weighs):
    """The cap is on what it weighs against each other, and takes no setting lambda for granted."""
    monkeypatch.setattr(Nearest, "weighs_sites", weighs)
    federation = Federation.of(nearest)
    means = {name: {"mean": torch.tensor(m)} for name, m in zip(nearest.site_names, (1.0, 4.0, 4.0), strict=True)}
    shared = {n: {k: torch.full_like(t, i) for k, t in federation.initial_shared.items()} for i, n in enumerate(means)}
    server = after(federation, shared, kept={"nearest": means})
    _, row = Welcome(plan_of(federation), server, federation.input_format(), 1).offer({"mean": torch.zeros(())})
    assert list(row.values()) == pytest.approx([1 / 2, 1 / 4, 1 / 4] if weighs else [2 / 3, 1 / 6, 1 / 6])
    results = joined_results(plan_of(federation), server, federation.model(), 1, {})
    assert results["rules"]["shared"]["what"] == "the sites' models by its own row of W"


def test_a_site_whose_statistics_are_gone_is_not_mixed_in(nearest):
    federation = Federation.of(nearest)
    shared = dict.fromkeys(nearest.site_names, federation.initial_shared)
    means = {"site-1": {"mean": torch.tensor(1.0)}, "site-3": {"mean": torch.tensor(4.0)}}
    server = after(federation, shared, kept={"nearest": means})
    _, row = Welcome(plan_of(federation), server, federation.input_format(), 1).offer({"mean": torch.zeros(())})
    assert row == pytest.approx({"site-1": 0.8, "site-3": 0.2})


def test_a_newcomers_row_is_capped_as_what_a_site_leaves_to_others_is():
    """With lambda 1/2 none weighs more than 1/4 at a site, half of what is left there: of a newcomer's row half."""
    federation = Federation.of(config("fedap", weight_cap=0.25))
    names = federation.config.site_names
    kept = {"statistics": dict(zip(names, statistics(1.0, 2.0, 4.0), strict=True))}
    server = after(federation, dict.fromkeys(names, federation.initial_shared), kept=kept)
    _, row = Welcome(plan_of(federation), server, federation.input_format(), 1).offer(statistics(0.0)[0])
    assert list(row.values()) == pytest.approx([1 / 2, 1 / 3, 1 / 6])  # without a cap 4, 2 and 1 of 7


def test_uniform_is_the_mean(tmp_path):
    federation = Federation.of(config("fedap", mixing="uniform"))
    names = federation.config.site_names
    shared = {n: {k: torch.full_like(t, i) for k, t in federation.initial_shared.items()} for i, n in enumerate(names)}
    numbers = dict(zip(names, (10, 20, 100), strict=True))  # of samples, which do not count
    found = begun(federation, replace(after(federation, shared), samples=numbers), images())
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


class HeadFirst(torch.nn.Module):
    """Registers its layers the other way round."""

    def __init__(self):
        super().__init__()
        self.head, self.norm2, self.fc2 = torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(6), torch.nn.Linear(8, 6)
        self.norm1, self.fc1 = torch.nn.BatchNorm1d(8), torch.nn.Linear(16, 8)

    def forward(self, x):
        x = torch.relu(self.norm1(5 * self.fc1(x.flatten(1)) + 3))
        return self.head(torch.relu(self.norm2(self.fc2(x))))


def test_layers_that_are_registered_the_other_way_round_see_each_other_too():
    model, data = HeadFirst(), images(train=40)
    take_statistics(model, data)
    seen = input_statistics(model, batch_norm_layers(model), training_inputs(data), unbiased=True)
    for path, layer in batch_norm_layers(model).items():
        assert torch.allclose(layer.running_mean.double(), seen[path][0], atol=1e-5), path
        assert torch.allclose(layer.running_var.double(), seen[path][1], rtol=1e-4), path


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep"])
def test_training_loaders_that_shuffle_do_where_no_statistics_are_taken(tmp_path, algorithm):
    data = images(train=12, seed=5)
    shuffled = DataLoader(TensorDataset(scale(data.images["train"]), data.labels["train"]), 4, shuffle=True)
    parts = {p: list(data.batches(p, 8)) for p in ("validation", "test")}
    federation, state = finished(tmp_path, config(algorithm, rounds=2))
    assert begun(federation, state, SiteLoaders(shuffled, **parts)).state


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


@pytest.mark.parametrize(("heads", "p", "sources"), [(3, 0.6, {0: 2, 1: 2}), (3, 0.34, {0: 1}), (4, 0.5, {0: 2, 1: 3})])
def test_personal_heads_repeat_the_shared_ones_in_order(heads, p, sources):
    fields = {"model_args": SMALL_VIT | {"num_heads": heads}, "sites": 2, "device": "cpu"}
    federation = Federation.of(make_config(algorithm="vit-heads", settings={"p": p}, **fields))
    model = federation.model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    repeat_shared_heads(model, federation.split)
    hidden = 12
    size = hidden // heads
    for block in range(2):
        key = f"blocks.{block}.attn"
        qkv, out = model.state_dict()[f"{key}.qkv.weight"], model.state_dict()[f"{key}.out_proj.weight"]
        for head in range(heads):
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


def test_each_epoch_has_an_order_of_its_own_and_the_same_when_joining_again():
    """The caller's training too begins from what that order is drawn from."""
    run_config, seen = config("fedbn"), []
    model, data = Federation.of(run_config).model(), images()
    for _ in range(2):
        adapt(
            model, data, run_config, "new", 3, lambda order: seen.append((order.initial_seed(), torch.initial_seed()))
        )
    assert len(set(seen)) == 3
    assert seen[:3] == seen[3:]
    assert all(order == drawn for order, drawn in seen)


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
    assert answer(newcomer, message, federation.model()).reason.startswith("the GPU has not enough memory")


def test_where_the_measure_is_never_defined_the_last_epoch_is_kept():
    """As of one class in validation, or of masks without any structure."""
    run_config = config("fedbn", select_by="auroc")
    data = images(validation=4)
    data.labels["validation"][:] = 0
    kept, found = adapt(Federation.of(run_config).model(), data, run_config, "new", 3)
    assert [measured["auroc"] for measured in found] == [None] * 4
    assert kept == 3


def test_without_validation_samples_the_last_epoch_is_kept():
    run_config = config("fedbn")
    model, data = Federation.of(run_config).model(), images(validation=0)
    assert adapt(model, data, run_config, "new", 2) == (2, [None] * 3)
