"""A mixing may have all that a mechanism may: an objective, channels both ways, a step and a move at the server."""

import numpy as np
import pytest
import torch
from tiny import Net, config, run, sites_of

from medpfl.algorithms.fedcurv import Curvature
from medpfl.algorithms.fedprox import Proximal
from medpfl.algorithms.label_prior import LabelPrior
from medpfl.algorithms.mechanism import Moved, Step
from medpfl.algorithms.mixing import Samples, Uniform
from medpfl.core.channels import Channel, Entry
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.engine.results import build_results
from medpfl.training.part import Outcome, Part

COUNT = {"count": Entry((), (torch.float32,), least=0)}
UP = Channel("samples", True, COUNT, ("train",), "a number", joined="mean")
DOWN = Channel("samples", False, COUNT, ("train",), "the sites' mean of it", from_round=2)


@pytest.fixture
def counting(monkeypatch):
    """FedAvg whose sites send their round's number, and get the mean of all sites' with the next; what each got."""
    got = []

    def begin(self, round_):
        got.append((round_.when, {name: float(tensor) for name, tensor in round_.brought("samples").items()}))
        return Part(end=lambda: Outcome(sends={"samples": {"count": torch.tensor(float(round_.when))}}))

    monkeypatch.setattr(Samples, "begin", begin)
    monkeypatch.setattr(Samples, "channels", lambda *_: (UP, DOWN))
    monkeypatch.setattr(Samples, "server_step", lambda self, parts: lambda turn: Step(dict(turn.sent["samples"])))
    return got


def test_its_step_at_the_server_is_taken(counting):
    run(config("fedavg", rounds=3))
    assert (
        sorted(counting, key=lambda each: each[0])
        == [(1, {})] * 3 + [(2, {"count": 1.0})] * 3 + [(3, {"count": 2.0})] * 3
    )


def test_its_move_is_made(monkeypatch):
    def move(before, mixed, kept):
        return Moved({name: tensor * 0 + 2 for name, tensor in mixed.items()}, {})

    monkeypatch.setattr(Samples, "server_move", lambda self, parts: move)
    moved, _ = run(config("fedavg", rounds=1))
    assert all(bool((tensor == 2).all()) for tensor in moved.shared["site-1"].values())


def test_what_a_site_uses_goes_through_the_mixing_first_and_the_prior_last(monkeypatch):
    changes = {Samples: lambda bias: bias + 1, Proximal: lambda bias: 2 * bias, LabelPrior: lambda bias: bias - 3}
    for kind, change in changes.items():

        def in_use(self, round_, change=change):
            state = round_.model.state_dict()
            return state | {"fc2.bias": change(state["fc2.bias"])}

        monkeypatch.setattr(kind, "in_use", in_use)
    site, model = sites_of(Federation.of(config("fedprox", settings={"prior": 1.0})))["site-1"], Net()
    before = model.fc2.bias.detach().clone()
    received = site._method(Message("validate", 1, {}), model, 1, "update", 1).use(model)
    assert torch.equal(model.fc2.bias, 2 * (before + 1) - 3)
    assert torch.equal(received["fc2.bias"], before)


def test_a_move_of_a_mixing_that_gives_each_site_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(Uniform, "server_move", lambda self, parts: None)
    with pytest.raises(UserError, match="uniform moves one common model, and mixing 'uniform' gives each site its own"):
        config("fedavg", mixing="uniform")


def test_what_it_adds_is_in_the_results(monkeypatch):
    monkeypatch.setattr(Samples, "objective", lambda self, run: "something of its own")
    monkeypatch.setattr(Samples, "each_round", lambda self: "a second model")
    monkeypatch.setattr(Samples, "further", lambda self: "an epoch")
    monkeypatch.setattr(Samples, "resists_forgetting", True)
    made = config("fedavg")
    assert made.choices()["objective"] == "cross-entropy + something of its own"
    assert (made.each_round, made.further, made.resists_forgetting) == ("a second model", "an epoch", True)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (lambda *_: np.eye(3), "before round 1: rows of W differ, and it says common = True"),
        (lambda *_: torch.eye(3), r"W must be an array of 3x3, not Tensor \[3, 3\]"),
        (lambda self, run, state: state.kept["means"], r"samples: its matrix at the server failed .*KeyError: 'means'"),
    ],
)
def test_a_wrong_matrix_is_said(monkeypatch, matrix, words):
    monkeypatch.setattr(Samples, "matrix", matrix)
    with pytest.raises(UserError, match=words):
        run(config("fedavg"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"counts": torch.ones(())}, "samples/counts is none of what travels as 'samples'"),
        ({"count": torch.ones(2)}, r"samples/count has shape \[2\], expected \[\]"),
        ({"count": torch.tensor(torch.nan)}, "samples/count has non-finite values"),
        ({"count": 1.0}, "what it gave has 'count', float, not a tensor"),
        (torch.ones(2), "what it gave is Tensor, not a dictionary of tensors"),
    ],
)
def test_a_step_that_gives_something_else_than_its_channel_has_is_said(counting, monkeypatch, made, words):
    monkeypatch.setattr(Samples, "server_step", lambda self, parts: lambda turn: Step(made))
    with pytest.raises(UserError, match=f"samples: its step at the server after round 1: {words}"):
        run(config("fedavg"))


def test_a_step_for_which_the_gpu_has_no_memory_is_said(monkeypatch):
    def step(turn):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnother line")

    monkeypatch.setattr(Samples, "server_step", lambda self, parts: step)
    with pytest.raises(UserError) as error:
        run(config("fedavg"))
    assert str(error.value) == (
        "samples: its step at the server after round 1: the GPU has not enough memory; --device cpu takes none of it: "
        "CUDA out of memory. Tried to allocate 2.00 GiB."
    )


def test_a_step_without_a_channel_is_said(counting, monkeypatch):
    monkeypatch.setattr(Samples, "channels", lambda *_: (UP,))
    with pytest.raises(UserError, match="it gave tensors, and has no channel to the sites"):
        run(config("fedavg"))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"means": UP}, "its channels gave dict, not a tuple of Channel"),
        (UP, "its channels gave Channel, not a tuple of Channel"),
        ((UP, UP), "its channel 'samples' is there twice"),
        ((Channel("a/b", True, COUNT, ("train",), ""),), "its channel 'a/b' needs a name without /"),
        ((Channel("", True, COUNT, ("train",), ""),), "its channel '' needs a name without /"),
        (
            (Channel("means", False, COUNT, ("train",), ""),),
            "its channel 'means' leads to the sites: call it 'samples'",
        ),
        (
            (Channel("samples", True, COUNT, ("training",), ""),),
            r"goes with the task 'training' \(did you mean train\?\): there are prepare, train",
        ),
        (
            (Channel("samples", True, COUNT, ("validate",), ""),),
            "'validate': there are prepare, train, statistics, join",
        ),
        ((Channel("samples", True, COUNT, (), ""),), "goes with no task: there are prepare, train, statistics, join"),
        (
            (Channel("samples", True, COUNT, ("prepare",), "", joined="mean"),),
            "is joined 'mean', which is of a round's sites: give it the task 'train' too",
        ),
        ((Channel("samples", True, COUNT, ("train",), "", joined="sum"),), "is joined 'sum': use 'by site' or 'mean'"),
    ],
)
def test_a_channel_in_which_nothing_would_travel_is_refused(monkeypatch, declared, words):
    monkeypatch.setattr(Samples, "channels", lambda *_: declared)
    with pytest.raises(UserError, match=f"samples: .*{words}"):
        Federation.of(config("fedavg"))


@pytest.mark.parametrize("to_server", [False, True])
def test_two_parts_cannot_have_one_channel(monkeypatch, to_server):
    for part, up in ((Samples, True), (Curvature, to_server)):
        own = (Channel("curvature", up, COUNT, ("train",), ""),)
        monkeypatch.setattr(part, "channels", lambda *_, own=own: own)
    with pytest.raises(UserError, match="curvature: its channel 'curvature' is there already, of samples"):
        Federation.of(config("fedcurv", mixing="samples"))


def test_w_may_be_made_of_the_rounds_updates(monkeypatch):
    """The site of the largest weight is what all get: what each round's updates say, also in the results."""
    given = []

    def matrix(self, run, state, updates):
        given.append((state.round, {site: float(tensors["fc2.bias"][0]) for site, tensors in updates.items()}))
        largest = max(updates, key=lambda site: given[-1][1][site])
        return np.tile(np.eye(3)[run.site_names.index(largest)], (3, 1))

    monkeypatch.setattr(Uniform, "matrix", matrix)
    made = config("fedavg", mixing="uniform", rounds=2)
    state, _ = run(made)
    assert [round_ for round_, _ in given] == [0, 1]
    _, last = given[-1]
    assert set(last) == set(made.site_names)
    assert {float(shared["fc2.bias"][0]) for shared in state.shared.values()} == {max(last.values())}
    results = build_results(Federation.of(made).plan(), state, env="inprocess", data={}, seconds={})
    largest = made.site_names.index(max(last, key=last.get))
    assert results["mixing"]["matrix"] == np.tile(np.eye(3)[largest], (3, 1)).tolist()


def test_a_w_of_updates_that_fails_is_named_with_its_round(monkeypatch):
    monkeypatch.setattr(Uniform, "matrix", lambda self, run, state, updates: updates["nobody"])
    with pytest.raises(UserError, match=r"uniform: its matrix at the server failed after round 1 .*KeyError: 'nobody'"):
        run(config("fedavg", mixing="uniform"))


@pytest.mark.parametrize("dtype", [bool, int, np.float32, np.longdouble])
def test_w_may_be_of_any_real_numbers_and_a_view(monkeypatch, dtype):
    monkeypatch.setattr(Uniform, "matrix", lambda self, run, state, updates: np.eye(3, dtype=dtype)[::-1])
    state, _ = run(config("fedavg", mixing="uniform", rounds=1))
    assert state.weights.tolist() == np.eye(3)[::-1].tolist()


def test_a_cap_on_others_holds_for_a_w_of_updates_and_results_have_what_was_used(monkeypatch):
    """Each site would get the next one's model alone; the third, which the second would get, is away."""

    def matrix(self, run, state, updates):
        return np.roll(np.eye(3), 1, axis=1)

    def away(*_):
        raise StateError("away")

    monkeypatch.setattr(Uniform, "matrix", matrix)
    made = config("fedavg", mixing="uniform", rounds=1, weight_cap=0.6, min_sites=2)
    state, _ = run(made, lambda sites: setattr(sites["site-3"], "handle", away))
    assert state.weights[:2] == pytest.approx(np.array([[0.4, 0.6, 0], [0, 0, 0]]))
    assert not state.weights[:, 2].any()
    results = build_results(Federation.of(made).plan(), state, env="inprocess", data={}, seconds={})
    assert results["mixing"] == {"sites": ["site-1", "site-2"], "matrix": state.weights[:2, :2].tolist()}


def test_what_a_mixing_is_given_it_does_not_change(monkeypatch):
    def matrix(self, run, state, updates):
        updates["site-1"]["fc1.bias"].zero_()
        return np.eye(3)

    monkeypatch.setattr(Uniform, "matrix", matrix)
    with pytest.raises(UserError, match="uniform: its matrix at the server changed what it was given in place"):
        run(config("fedavg", mixing="uniform"))


def test_a_move_that_changes_what_it_is_given_is_refused(monkeypatch):
    def move(before, mixed, kept):
        next(iter(mixed.values())).zero_()
        return Moved(dict(mixed), {})

    monkeypatch.setattr(Samples, "server_move", lambda self, parts: move)
    with pytest.raises(UserError, match="samples: its move at the server changed what it was given in place"):
        run(config("fedavg", rounds=1))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Entry((None,), (torch.float32,), longest=9), "'count' is of any length or of several types"),
        (Entry((-1,), (torch.float32,)), "'count' is of any length or of several types"),
        (Entry((), (torch.float16, torch.float32)), "'count' is of any length or of several types"),
        (Entry((), torch.float32), r"has 'count' of dtypes=torch.float32: use a tuple"),
        (torch.ones(()), "has 'count', Tensor, among its entries"),
        (Entry(3, (torch.float32,)), "has 'count' of shape=3: use a tuple of lengths"),
        (Entry((), (torch.float32,), least="0"), "has 'count' of values from '0' to"),
    ],
)
def test_what_could_not_leave_is_refused_before_the_run(monkeypatch, entry, words):
    channel = Channel("samples", True, {"count": entry}, ("train",), "a number")
    monkeypatch.setattr(Samples, "channels", lambda *_: (channel,))
    with pytest.raises(UserError, match=f"samples: its channel 'samples' .*{words}"):
        Federation.of(config("fedavg")).plan()


def test_what_leads_to_the_sites_may_be_of_any_length_and_type_and_is_no_mean_of_a_round(monkeypatch):
    entries = {"count": Entry((-1,), (torch.float16, torch.float32))}
    down = Channel("samples", False, entries, ("prepare",), "a number", joined="mean")
    monkeypatch.setattr(Samples, "channels", lambda *_: (down,))
    assert down in Federation.of(config("fedavg")).channels
