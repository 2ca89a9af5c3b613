"""A run that begins from a file's weights: the same at the server and at every site, and no path goes with them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import Net, config, run, same, sites_of

from medpfl.algorithms.start import START
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Message, named
from medpfl.core.parameters import StateError
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.models.start_weights import Start
from medpfl.runs.experiment import run_experiment
from medpfl.runs.join import Joining, join
from medpfl.server.newcomer import Welcome
from medpfl.server.rounds import messages
from medpfl.site.answer import answer
from medpfl.site.book import Book
from medpfl.site.contract import Contract
from medpfl.site.newcomer import Newcomer
from medpfl.site.start import INIT, start_at_site
from medpfl.site.store import DiskStore, MemoryStore


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(7)
    model = Net()
    model.norm.running_mean.normal_()
    save_file(model.state_dict(), tmp_path / "first.safetensors")
    return tmp_path / "first.safetensors", dict(model.state_dict())


def test_server_and_sites_begin_with_the_files_values(file):
    path, state = file
    federation = Federation.of(config("fedbn", init=str(path), alone="yes"))
    assert same(federation.first(), state)
    assert same({**federation.initial_shared, **federation.initial_personal}, state)
    site = sites_of(federation)["site-2"]
    assert torch.equal(site.initial_personal["norm.running_mean"], state["norm.running_mean"])
    assert same(site.rival.first(), state)
    assert federation.config.init == Start(state).named
    assert str(path) not in str(federation.config)


def test_the_values_come_to_each_site_once(file):
    path, state = file
    federation = Federation.of(config("fedbn", init=str(path)))
    plan = federation.plan()
    hello = messages(plan, ServerState())["site-1"]
    assert same(hello.brought(START), state)
    joined = ServerState(phase="train", samples={"site-1": 4, "site-2": 4, "site-3": 4})
    assert not messages(plan, joined)["site-1"].brought(START)


def test_a_site_keeps_what_the_contract_names_and_nothing_else(file):
    path, state = file
    named_so = Federation.of(config("fedbn", init=str(path))).config
    other = {**state, "fc1.bias": state["fc1.bias"] + 1}
    store = MemoryStore()
    for tensors in ({}, other, {k: v for k, v in state.items() if k != "fc1.bias"}):
        words = "not those that the contract names" if tensors else "this site has not kept them"
        with pytest.raises(StateError, match=words):
            start_at_site(named_so, store, Message("prepare", 0, named(START, tensors)), "site-1")
    assert same(start_at_site(named_so, store, Message("prepare", 0, named(START, state)), "site-1").state, state)
    assert store.get(INIT, 0) is None, "the folder may be another submitter's"
    store.put(INIT, 0, state)
    assert same(start_at_site(named_so, store, Message("train", 1), "site-1").state, state)
    with pytest.raises(StateError, match="not those that the contract names"):
        start_at_site(named_so.model_copy(update={"init": "sha256:0"}), store, Message("train", 1), "site-1")


def test_the_values_are_kept_once_the_contract_lets_the_hello(file, tmp_path):
    """Else another submitter's job of the same name would take them from under a run."""
    path, state = file
    federation = Federation.of(config("fedbn", init=str(path)))
    store = DiskStore(tmp_path / "site", durable=False)
    model, split = federation.model(), {"split": federation.split.description()}

    def hello(submitter, start):
        contract = Contract(federation.config, submitter=submitter)
        site = federation.guarded(federation.site("site-1", store), contract=contract, book=Book(store.folder))
        return answer(site, Message("prepare", 0, named(START, start), split), model)

    assert not isinstance(hello("alice", state), Failure)
    assert same(store.get(INIT, 0), state)
    other = {name: tensor + 1 for name, tensor in state.items()}
    assert "another submitter" in hello("mallory", other).reason
    assert same(store.get(INIT, 0), state)


def test_a_site_without_the_values_does_not_begin_with_others(file):
    named_so = Federation.of(config("fedbn", init=str(file[0]))).config
    with pytest.raises(UserError, match="the run's start weights are not here: give --init and the file"):
        Federation.of(named_so).site("site-1", MemoryStore())


def test_where_a_run_begins_shows_in_its_first_loss(file):
    """Training as published from another start is another run; without the file the bits are as ever."""
    losses = [
        run(config("fedavg", rounds=1, **({"init": str(file[0])} if own else {})))[0].history[0]["sites"]["site-1"]
        for own in (True, False)
    ]
    assert losses[0]["train_loss"] != losses[1]["train_loss"]


def test_results_say_what_was_loaded_and_never_where_the_file_was(file, tmp_path):
    out = tmp_path / "out"
    asked = {"sites": 2, "rounds": 1, "train_fraction": 0.05, "data": "organamnist-sample", "model": "lenet5"}
    model = Federation.of(config("fedbn", **asked)).model().state_dict()
    weights = tmp_path / "hospital" / "lenet.safetensors"
    weights.parent.mkdir()
    save_file({name: tensor + 1 for name, tensor in model.items()}, weights)
    results = run_experiment(config("fedbn", init=str(weights), **asked), out, env="inprocess")
    assert (results["init"]["file"], results["init"]["loaded"]["count"]) == ("lenet.safetensors", len(model))
    assert results["notes"][0].startswith("Start weights (sha256 ")
    for text in ("results.json", "report.html"):
        assert str(tmp_path) not in (out / text).read_text()
    assert json.loads((out / "results.json").read_text())["config"]["init"].startswith("sha256:")
    # The same values under another name are the same run; other values are not.
    weights.rename(tmp_path / "moved.safetensors")
    moved = config("fedbn", init=str(tmp_path / "moved.safetensors"), **asked)
    assert run_experiment(moved, out, env="inprocess", resume=True) == results
    save_file(dict(model), tmp_path / "moved.safetensors")
    with pytest.raises(UserError, match="holds a run with init = 'sha256:"):
        run_experiment(moved, out, env="inprocess", resume=True)


def test_a_site_joins_a_run_that_began_from_a_file_with_that_file(file, tmp_path):
    """Its personal part and the model that it trains alone begin there."""
    path, state = file
    federation = Federation.of(config("fedbn", init=str(path), alone="yes", use="best"))
    server = tmp_path / "run" / "state" / "server"
    server.mkdir(parents=True)
    run_in_process(federation.plan(), sites_of(federation), federation.model, workers=1, checkpoint=server)
    asked = {"data": "tiny:site_data", "sites": 1, "names": ("new-1",), "local_epochs": 1}

    with pytest.raises(UserError, match="from which a new site begins too: give their file with --init"):
        join("fedbn", tmp_path / "run", asked, tmp_path / "none")
    save_file({name: tensor + 1 for name, tensor in state.items()}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="these are not the start weights of the run"):
        join("fedbn", tmp_path / "run", asked | {"init": str(tmp_path / "other.safetensors")}, tmp_path / "none")

    first = {}
    begun = Newcomer.begin

    def seen(self, model, shared):
        first.update(self.first)
        begun(self, model, shared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Newcomer, "begin", seen)
        found = join("fedbn", tmp_path / "run", asked | {"init": str(path)}, tmp_path / "joined")
    assert same(first, state)
    assert found["sites"]["new-1"]["adapted"]["n"] == 7
    assert str(path) not in (tmp_path / "joined" / "join.json").read_text()


@pytest.mark.parametrize(("algorithm", "first", "second"), [("fedbn", "join", None), ("f-fedap", "statistics", "join")])
def test_the_values_come_to_a_new_site_once(file, algorithm, first, second):
    path, state = file
    federation = Federation.of(config(algorithm, init=str(path), rounds=2))
    plan = federation.plan()
    server = run_in_process(plan, sites_of(federation), federation.model, workers=1)
    newcomer = sites_of(Federation.of(config(algorithm, init=str(path), names=("new-1", "new-2", "new-3"))))["new-1"]
    new = federation.newcomer("new-1", federation.source, newcomer.data, path.parent / "new-1")
    seen = {}

    def exchange(messages):
        seen.update({message.task: message for message in messages.values()})
        return [answer(new, message, federation.model()) for message in messages.values()]

    Welcome(plan, server, federation.input_format(), epochs=1).run(["new-1"], exchange)
    assert same(seen[first].brought(START), state)
    assert second is None or not seen[second].brought(START)


def test_a_run_at_a_real_federation_says_where_its_file_is(file, tmp_path):
    """Its note has the path, which whoever submits and the server have; its sites got the fingerprint."""
    noted = config("fedbn", init=str(file[0]))
    said = {"data": "tiny:site_data", "names": ("new-1",), "sites": 1}
    assert Joining.of("fedbn", tmp_path, noted, said, real=True).start == file[0]
    other = Joining.of("fedbn", tmp_path, noted, said | {"init": "moved.safetensors"}, real=True)
    assert other.start == Path("moved.safetensors")


def test_a_run_from_random_weights_takes_no_file_from_who_joins(file, tmp_path):
    with pytest.raises(UserError, match="began from random weights; leave it out"):
        Joining.of("fedbn", tmp_path, config("fedbn"), {"data": "tiny:site_data", "init": str(file[0])})
