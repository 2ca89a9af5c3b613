"""What results say of the pretrained model f, and when they warn of it."""

import numpy as np
import pytest
import torch
from tiny import Net, config, images

from medpfl.algorithms.fedap import quality
from medpfl.algorithms.fedap.quality import doubtful, judge, stability
from medpfl.config.run import make_config
from medpfl.core.declarations import Nothing
from medpfl.core.parameters import ParameterSplit
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.engine.results import build_results
from medpfl.server.checkpoint import load_checkpoint, save_checkpoint
from medpfl.server.rounds import advance, messages
from medpfl.site.store import MemoryStore


def naming(c):
    """A model that names class c whatever it sees."""
    model = Net()
    with torch.no_grad():
        model.fc2.weight.zero_()
        model.fc2.bias.copy_(torch.eye(3)[c])
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_its_accuracy_at_every_site_by_hand():
    # Classes take turns, beginning with 0: 2 of 5, 2 of 4, none there.
    sites = {"a": images(validation=5), "b": images(validation=4), "c": images(validation=0)}
    found = judge(config("fedap"), naming(0), Net(), sites)
    assert found["sites"] == {"a": pytest.approx(0.4), "b": pytest.approx(0.5), "c": None}
    assert (found["measure"], found["n"]) == ("accuracy", 9)
    assert found["pooled"] == found["most_frequent"] == pytest.approx(4 / 9)
    assert doubtful(found)
    assert judge(config("fedap"), naming(0), Net(), {"c": sites["c"]}) == {
        "measure": "accuracy", "sites": {"c": None}, "pooled": None, "n": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pooled", "n", "expected"),
    [(0.176, 380, True), (0.191, 380, True), (0.193, 380, False), (0.176, 10_000, False), (0.1, 10_000, True)],
)
def test_no_better_than_the_most_frequent_class_within_two_standard_errors(pooled, n, expected):
    """sqrt(0.155 * 0.845 / 380) = 0.0186."""
    assert doubtful({"measure": "accuracy", "pooled": pooled, "most_frequent": 0.155, "n": n}) is expected


def test_w_under_the_same_model_does_not_move():
    sites = {name: images(train=20, seed=seed, brightness=20 * seed) for seed, name in enumerate("abc")}
    split = ParameterSplit(Net(), Nothing())
    torch.manual_seed(0)
    one, other = Net().state_dict(), Net().state_dict()
    same = stability("batch-norm", (one, one), Net(), split, sites, 0.5)
    assert same == {"correlation": pytest.approx(1), "largest_change": 0.0}
    other = stability("batch-norm", (one, other), Net(), split, sites, 0.5)
    assert other["largest_change"] > 0 and -1 <= other["correlation"] <= 1


def moved(monkeypatch, *points):
    """How W moves from one model to another, under which the sites' statistics are at these points."""
    under = iter([[{"norm": (np.array(point, float), np.ones(len(point)))} for point in of] for of in points])
    monkeypatch.setattr(quality, "_all", lambda *_: next(under))
    return stability("batch-norm", ({}, {}), None, None, dict.fromkeys(range(len(points[0]))), 0.5)


def test_how_far_w_moves_by_hand(monkeypatch):
    """Two models under which two sites have changed places: the rows are those of 0, 1 and 4, and of 0, 4 and 1."""
    found = moved(monkeypatch, [(0,), (1,), (4,)], [(0,), (4,), (1,)])
    one, other = [0.4, 0.1, 3 / 8, 1 / 8, 3 / 14, 2 / 7], [0.1, 0.4, 3 / 14, 2 / 7, 3 / 8, 1 / 8]
    assert found == {"correlation": pytest.approx(np.corrcoef(one, other)[0, 1]), "largest_change": pytest.approx(0.3)}


def test_the_largest_change_may_be_of_a_weight_that_grew(monkeypatch):
    """Of four sites that are all as far apart each weighs 1/6; of two pairs of twins the twin has all, 1/2."""
    found = moved(monkeypatch, np.eye(4), [(0,), (0,), (1,), (1,)])
    assert found == {"correlation": None, "largest_change": pytest.approx(1 / 3)}


@pytest.fixture(scope="module")
def greeted():
    settings = {"pretrain_epochs": 1, "pretrain_check": 1}
    fields = {"sites": 3, "rounds": 2, "train_fraction": 0.05, "partition": "equal-dirichlet:0.5", "device": "cpu"}
    federation = Federation.of(make_config(algorithm="fedap", alone="no", settings=settings, **fields))
    plan = federation.plan()
    sites = {name: federation.site(name, MemoryStore()) for name in federation.config.site_names}
    replies = [sites[s].handle(m, federation.model()) for s, m in messages(plan, ServerState()).items()]
    return plan, sites, advance(plan, ServerState(), replies, 0.0)


def test_results_have_it_and_warn(greeted, tmp_path):
    plan, sites, state = greeted
    results = build_results(plan, state, env="inprocess", data={}, seconds={})
    told, task = results["pretrained"], plan.config.learned
    model = Federation.of(plan.config).model()
    model.load_state_dict(plan.pretrained)
    for name, site in sites.items():
        assert told["sites"][name] == task.evaluate(model, site.data, "validation")["accuracy"]
    assert told["pooled"] == pytest.approx(
        np.average(list(told["sites"].values()), weights=[s.data.samples("validation") for s in sites.values()])
    )
    assert told["longer"].keys() > {"epochs", "correlation", "largest_change", "pooled"}
    assert told["longer"]["epochs"] == 2
    assert doubtful(told)  # one epoch of fourteen images
    assert any("hardly been trained" in note for note in results["notes"])
    save_checkpoint(tmp_path / "server.safetensors", plan.config, state, durable=False)
    assert load_checkpoint(tmp_path / "server.safetensors", plan.config).judged == told


def test_a_checkpoint_of_the_users_is_not_judged(tmp_path):
    torch.save(Federation.of(config("fedap")).model().state_dict(), tmp_path / "f.pt")
    federation = Federation.of(config("fedap", settings={"pretrain": str(tmp_path / "f.pt")}))
    assert federation.plan().judged is None
