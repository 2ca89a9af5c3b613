"""The method as a whole: warm-up, what travels, what a site minimises, what goes on when a synthesis fails."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import config, last_models, objective_with, same, sites_of
from tiny import images as tiny_images
from torch.nn.functional import cross_entropy

from medpfl.algorithms.fedimpres import Impression, ImpressionSettings
from medpfl.algorithms.mechanism import LocalRound
from medpfl.config.run import make_config
from medpfl.core import scratch
from medpfl.core.declarations import Nothing
from medpfl.core.errors import Stopped, UserError
from medpfl.core.messages import Message, named
from medpfl.core.parameters import ParameterSplit, StateError
from medpfl.core.seeding import generator
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import endless_batches
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.models import build_model, logits
from medpfl.runs.experiment import run_experiment
from medpfl.server.checkpoint import load_checkpoint, save_checkpoint
from medpfl.server.rounds import Plan, advance, messages
from medpfl.server.weighing import mixing_matrix
from medpfl.site.store import MemoryStore
from medpfl.tasks import TASKS
from medpfl.training.objective import objective_of

SMALL = {"warmup": 1, "images": 6, "admm_iterations": 2, "inner_steps": 2}
TWO_SITES = {"model": "lenet5", "sites": 2, "rounds": 3, "local_epochs": 1, "train_fraction": 0.05, "device": "cpu"}
TWO_SITES |= {"alone": "no"}


def small(algorithm="fedimpres", **fields):
    settings = SMALL | fields.pop("settings", {})
    return make_config(algorithm=algorithm, settings=settings, **(TWO_SITES | fields))


def run(run_config):
    """The final state, and the sites."""
    federation = Federation.of(run_config)
    sites = sites_of(federation)
    return run_in_process(federation.plan(), sites, federation.model, workers=1), sites


def steps(run_config):
    """The run step by step: plan, and the states after each."""
    federation = Federation.of(run_config)
    plan = federation.plan()
    sites = {name: federation.site(name, MemoryStore()) for name in run_config.site_names}
    states, state = [], ServerState()
    while state.phase != "done":
        outgoing = messages(plan, state)
        states.append((state, outgoing))
        state = advance(plan, state, [sites[n].handle(m, federation.model()) for n, m in outgoing.items()], 0.0)
    return plan, [*states, (state, {})]


def impression(state):
    """What goes with the next round's messages."""
    return state.common.get("impression", {})


@pytest.fixture(scope="module")
def made():
    return steps(small())


def test_the_impression_comes_after_the_warm_up_and_with_training_alone(made):
    _, states = made
    sent = {
        (message.task, message.round): {name for name in message.tensors if name.startswith("impression/")}
        for _, outgoing in states
        for message in outgoing.values()
    }
    both = {"impression/images", "impression/labels"}
    assert [sent["train", r] for r in (1, 2, 3)] == [set(), both, both]
    assert not sent["validate", 3]
    final = states[-1][0]
    assert ["impression" in record for record in final.history] == [True, True, False]
    said = final.history[0]["impression"]
    assert said["images"] == 6
    assert len(said["loss"]) == len(said["constraint"]) == 3


def test_it_is_counted_in_what_sites_receive(made):
    final = made[1][-1][0]
    received = [record["sites"]["site-1"]["received_bytes"] for record in final.history]
    pixels = 6 * 28 * 28 * 2 + 6  # float16 and a byte for each label
    assert pixels <= received[1] - received[0] <= pixels + 200


def test_nothing_of_it_is_sent_back(made):
    plan, states = made
    assert all(not name.startswith("impression/") for name in plan.split.shared_names)
    assert all(not name.startswith("impression/") for state, _ in states for s in state.shared.values() for name in s)


def test_the_same_run_gives_the_same_impression(made):
    again = steps(small())[1]
    assert all(same(impression(a), impression(b)) for (a, _), (b, _) in zip(made[1], again, strict=True))


def test_a_checkpoint_keeps_it(made, tmp_path):
    plan, states = made
    state = next(s for s, _ in states if impression(s))
    save_checkpoint(tmp_path / "server", plan.config, state, durable=False)
    assert same(impression(load_checkpoint(tmp_path / "server", plan.config)), impression(state))


@pytest.mark.slow
def test_without_beta_it_is_fedavg_bit_for_bit():
    fedavg = last_models(*run(_fedavg()))
    without = last_models(*run(small(settings={"beta": 0})))
    assert all(same(fedavg[site], without[site]) for site in fedavg)


def _fedavg():
    settings = {"batch_size": 16}
    return make_config(algorithm="fedavg", settings=settings, **TWO_SITES)


def test_the_objective_is_two_means():
    torch.manual_seed(0)
    model = build_model("lenet5", in_channels=1, num_classes=3, image_size=28)
    x, y = torch.randn(5, 1, 28, 28), torch.tensor([0, 1, 2, 0, 1])
    images, labels = torch.randn(8, 1, 28, 28), torch.arange(8) % 3
    mechanism = Impression(ImpressionSettings(beta=0.5))
    brought = named("impression", {"images": images, "labels": labels})
    model.eval()  # so that batches do not see each other
    split = ParameterSplit(model, Nothing())
    reported, minimised = objective_with(mechanism, model, split, brought, settings={"batch_size": 8})(x, y)
    torch.testing.assert_close(reported, cross_entropy(logits(model(x)), y))
    torch.testing.assert_close(minimised - reported, 0.5 * cross_entropy(logits(model(images)), labels))


def test_endless_batches_show_every_image_once_a_pass():
    batches = endless_batches(torch.arange(5.0), torch.arange(5), 2, generator(0))
    first, second = ([next(batches) for _ in range(3)] for _ in range(2))
    for one_pass in (first, second):
        assert sorted(torch.cat([y for _, y in one_pass]).tolist()) == [0, 1, 2, 3, 4]
        assert all(torch.equal(x, y.float()) for x, y in one_pass)
    assert [y.tolist() for _, y in first] != [y.tolist() for _, y in second]


def test_with_personal_batch_norm():
    """What is shared is the mean by samples, the same at both sites; batch norm is each one's own."""
    state, sites = run(small(personal="batch-norm"))
    first, second = last_models(state, sites).values()
    own = {name for name in first if name.startswith("bn")}
    assert {name for name in first if not torch.equal(first[name], second[name])} >= own - {
        f"bn{k}.num_batches_tracked" for k in (1, 2)
    }
    assert all(torch.equal(first[name], second[name]) for name in first if name not in own)
    assert own.isdisjoint(state.shared["site-1"])


def test_with_a_proximal_term():
    """CE(local) + beta CE(impression) + mu/2 of the squared distance, each written down here."""
    torch.manual_seed(0)
    model = build_model("lenet5", in_channels=1, num_classes=3, image_size=28).eval()
    split, received = ParameterSplit(model, Nothing()), {n: p.detach().clone() for n, p in model.named_parameters()}
    x, y = torch.randn(5, 1, 28, 28), torch.tensor([0, 1, 2, 0, 1])
    images, labels = torch.randn(8, 1, 28, 28), torch.arange(8) % 3
    both = config(settings={"beta": 0.5, "warmup": 1, "mu": 0.2, "batch_size": 8})
    brought = split.shared_state(model) | named("impression", {"images": images, "labels": labels})
    message = Message("train", 1, brought)
    round_ = LocalRound("site-1", both, 1, message, model, split, tiny_images(), lambda: None, lambda: None)
    parts = [part for mechanism in both.mechanisms if (part := mechanism.begin(round_))]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    _, minimised = objective_of(model, parts, TASKS["classification"].loss)(x, y)
    squares = sum(float((p.detach() - received[n]).square().sum()) for n, p in model.named_parameters())
    with torch.no_grad():
        expected = cross_entropy(model(x), y) + 0.5 * cross_entropy(model(images), labels) + 0.2 / 2 * squares
    torch.testing.assert_close(minimised.detach(), expected)


@pytest.mark.slow
def test_with_similarity():
    """W is FedAP's own, to the bit, and the sites' next parts are mixed by it; the impression is of their mean."""
    fields = {"mixing": "similarity", "personal": "batch-norm", "settings": {"pretrain_epochs": 1}, "sites": 3}
    state, _ = run(small(**fields))
    without, _ = run(small(**fields | {"settings": {"pretrain_epochs": 1, "beta": 0}}))
    assert state.weights.tolist() == without.weights.tolist()
    assert np.ptp(state.weights[~np.eye(3, dtype=bool)]) > 0
    assert state.history[0]["impression"]["images"] == 6
    first = {site: record["train_loss"] for site, record in state.history[0]["sites"].items()}
    assert first == {site: record["train_loss"] for site, record in without.history[0]["sites"].items()}


@pytest.mark.slow
def test_with_uniform_weights():
    """Two sites with lambda 0.5 count the same, whatever their numbers of samples: both get the plain mean."""
    plan, states = steps(small(mixing="uniform", personal="top:1", partition="dirichlet:1"))
    assert states[-1][0].weights is None
    samples = states[-1][0].samples
    assert len(set(samples.values())) == 2
    assert mixing_matrix(plan, states[-1][0], range(2)).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    shared = states[-1][0].shared
    assert same(shared["site-1"], shared["site-2"])
    assert not any(name.startswith("fc3") for name in shared["site-1"])


@pytest.mark.slow
def test_without_constraint_or_synthesis():
    plain, only_ce, none = (run(small(settings=s))[0] for s in ({}, {"constraint": 0}, {"admm_iterations": 0}))
    reports = [state.history[0]["impression"] for state in (plain, only_ce, none)]
    assert all(report["images"] == 6 for report in reports)
    # The model is the same after the warm-up: all begin with the same loss and constraint, and end with others.
    assert len({report["loss"][0] for report in reports}) == len({r["constraint"][0] for r in reports}) == 1
    assert [len(report["loss"]) for report in reports] == [3, 3, 1]
    assert plain.history[0]["impression"]["loss"][-1] != only_ce.history[0]["impression"]["loss"][-1]
    assert reports[0]["dual"][-1] > 0 and set(reports[1]["dual"]) == {0.0}
    assert reports[0]["moved"] > 0 and reports[1]["moved"] > 0 and reports[2]["moved"] == 0.0


def test_a_failing_synthesis_ends_no_run():
    state, _ = run(small(settings={"pixel_lr": 1e30}))
    assert state.phase == "done"
    assert "lower pixel_lr" in state.history[0]["impression"]["failed"]
    assert not impression(state)


def test_a_set_without_space_on_disk_ends_no_run(monkeypatch, tmp_path):
    federation = Federation.of(small())
    plan = federation.plan()
    monkeypatch.setattr(scratch, "IN_MEMORY_BYTES", 0)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    state = run_in_process(plan, sites_of(federation), federation.model, workers=1)
    assert state.phase == "done"
    assert "no temporary file" in state.history[0]["impression"]["failed"]


@pytest.mark.slow
@pytest.mark.parametrize("personal", ["nothing", "batch-norm"])
def test_a_set_in_a_file_gives_the_same_run(monkeypatch, personal):
    usual = run(small(personal=personal))
    monkeypatch.setattr(scratch, "IN_MEMORY_BYTES", 0)
    filed = run(small(personal=personal))
    assert same(impression(usual[0]), impression(filed[0]))
    assert all(same(a, last_models(*filed)[site]) for site, a in last_models(*usual).items())


def test_a_run_that_is_stopped_keeps_the_step_before(tmp_path):
    federation = Federation.of(small())
    asked = []

    def stop():
        asked.append(None)
        return len(asked) == 20  # an impression asks 15 times: before 4 steps and whenever images or labels are fetched

    plan, saved = federation.plan(stop=stop), []
    with pytest.raises(Stopped):
        run_in_process(
            plan, sites_of(federation), federation.model, workers=1, checkpoint=tmp_path, after_step=saved.append
        )
    assert len(asked) == 20
    kept = load_checkpoint(tmp_path / "server.safetensors", plan.config)
    assert kept.round == saved[-1].round == 1
    assert same(impression(kept), impression(saved[-1]))


@pytest.mark.parametrize("images", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_more_classes_than_images(images):
    state, _ = run(small(rounds=2, settings={"images": images}))
    assert state.history[0]["impression"]["images"] == images
    assert not state.failures


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_server_without_the_gpu_that_is_asked_for():
    with pytest.raises(UserError, match="--device cuda: torch sees no GPU here; use --device cpu or auto"):
        Federation.of(small(device="cuda"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"settings": {"start": "holdout"}}, "give --holdout"),
        ({"settings": {"warmup": 3}}, "warmup=3 leaves no round with an impression: the run has 3"),
        ({"settings": {"images": 0}}, "images must be positive"),
        ({"settings": {"beta": -1}}, "beta must be >= 0"),
    ],
)
def test_what_makes_no_sense(fields, message):
    with pytest.raises(UserError, match=message):
        small(**fields)


def test_a_label_of_no_class_is_refused():
    run_config = small()
    (channel,) = Federation.of(run_config).channels
    labels = torch.tensor([0, 10], dtype=torch.uint8)
    tensors = {"impression/images": torch.zeros(2, 1, 28, 28, dtype=torch.float16), "impression/labels": labels}
    channel.check(tensors)
    with pytest.raises(StateError, match="impression/labels has values above 10"):
        channel.check(tensors | {"impression/labels": labels + 1})


def test_own_loaders_do_not_tell_the_size_of_images():
    with pytest.raises(UserError, match="do not tell"):
        run(config("fedimpres", settings=SMALL))


def test_plan_has_no_impression_for_other_methods():
    federation = Federation.of(_fedavg())
    assert isinstance(federation.plan(), Plan)
    assert federation.plan().steps == {}
    assert len(Federation.of(small()).plan().steps) == 1


def test_the_report_shows_the_images_and_what_was_done(tmp_path):
    results = run_experiment(small(), tmp_path, env="inprocess")
    assert results["impression"]["images"] == 6
    assert results["impression"]["picture"].startswith("data:image/png;base64,")
    page = (tmp_path / "report.html").read_text()
    assert "Federated impression" in page
    assert results["impression"]["picture"] in page
    picture = Image.open(io.BytesIO(base64.b64decode(results["impression"]["picture"].partition(",")[2])))
    assert picture.size == (8 * 29 - 1, 28)


@pytest.mark.parametrize(
    ("algorithm", "settings", "size"),
    [("fedimpres", {"synthesis_batch": 20, "batch_size": 30}, 20), ("fedavg", {"beta": 0.5, "batch_size": 60}, 16)],
)
def test_images_are_moved_in_batches_of_their_own(algorithm, settings, size):
    """Training's batch size has no say in it: the paper's Retina runs have 20 and 40 here, 30 and 60 there."""
    parts = make_config(algorithm=algorithm, settings=settings).mechanisms
    assert [part.settings.synthesis_batch for part in parts if part.name == "impression"] == [size]
