"""The penalty and W by hand, and all in short runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from own_package.class_means import ClassMeans, ClassMeansSettings, class_means
from own_package.fedamp import Attentive, AttentiveSettings
from own_package.l2_sp import StartingPoint, StartingPointSettings
from torch import nn

import medpfl
from medpfl.core.declarations import parse_declaration
from medpfl.core.parameters import ParameterSplit


def test_the_penalty_by_hand():
    """Weights (1, -1), first (0, 2), anchor 0.5: 0.25 (1 + 9) = 2.5, of gradient 0.5 (1, -3)."""
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[1.0], [-1.0]])
    first = {"weight": torch.tensor([[0.0], [2.0]])}
    split = ParameterSplit(model, parse_declaration("nothing"))
    part = StartingPoint(StartingPointSettings(anchor=0.5)).begin(
        SimpleNamespace(model=model, split=split, kept=lambda: first)
    )
    penalty = part.term()
    penalty.backward()
    assert penalty.item() == pytest.approx(2.5)
    assert model.weight.grad.flatten().tolist() == pytest.approx([0.5, -1.5])
    assert part.end().state is first


def test_weights_by_hand():
    """Means 0 and 2 of the class that both have: d = 4, of width 4 exp(-1); the third has no class of theirs.

    The last two are mixed by samples: one sent nothing, and one says that it has no class, which must not end the run.
    """
    sent = [([[0.0], [9.0]], [0.5, 0.0]), ([[2.0], [1.0]], [1.0, 0.0]), ([[0.0], [5.0]], [0.0, 1.0])]
    kept = {f"site-{i}": {"means": torch.tensor(m), "shares": torch.tensor(s)} for i, (m, s) in enumerate(sent, 1)}
    kept["site-5"] = {"means": torch.zeros(2, 1), "shares": torch.zeros(2)}
    run = SimpleNamespace(site_names=[f"site-{i}" for i in range(1, 6)], largest_weight=10)
    state = SimpleNamespace(samples=dict.fromkeys(run.site_names, 5), kept={"class-means": kept})
    found = ClassMeans(ClassMeansSettings(means_width=4)).matrix(run, state)
    near = np.exp(-1)
    by_samples = [(1 + near) / 5] * 5
    expected = [[1, near, 0, 0, 0], [near, 1, 0, 0, 0], [0, 0, 1 + near, 0, 0], by_samples, by_samples]
    assert found == pytest.approx(np.array(expected) / (1 + near))


def test_attention_by_hand():
    """Models (1, 0), (2, 0) and (0, 3): cosines 1, 0 and 0; exp(0) to exp(-ln 4) is 4 to 1. The third sent none."""
    weights = {"site-1": [1.0, 0.0], "site-2": [2.0, 0.0], "site-4": [0.0, 3.0]}
    updates = {site: {"weight": torch.tensor(w), "count": torch.tensor(7)} for site, w in weights.items()}
    run = SimpleNamespace(site_names=[f"site-{i}" for i in range(1, 5)], sites=4)
    settings = AttentiveSettings(amp_own=0.5, amp_sharpness=np.log(4))
    found = Attentive(settings).matrix(run, None, updates)
    expected = [[0.5, 0.4, 0, 0.1], [0.4, 0.5, 0, 0.1], [0, 0, 0, 0], [0.25, 0.25, 0, 0.5]]
    assert found == pytest.approx(np.array(expected))


def test_class_means_by_hand():
    """Features are the inputs of a linear layer: of class 0 (1, 3) and (3, 5); of class 2 (0, 1); none of class 1."""
    x, y = torch.tensor([[1.0, 3.0], [3.0, 5.0], [0.0, 1.0]]), torch.tensor([0, 0, 2])
    model = nn.Sequential(nn.Linear(2, 3))
    found = class_means(model, model[0], SimpleNamespace(batches=lambda part, size: [(x, y)]))
    assert found["means"].tolist() == [[2, 4], [0, 0], [0, 1]]
    assert found["shares"].tolist() == pytest.approx([2 / 3, 0, 1 / 3])


def test_what_makes_no_sense_is_refused_in_words():
    """Masks have no classes' means, and no bound on updates covers them."""
    for fields, words in (
        ({"data": "sarcoma-sample"}, "class means are of one class a sample; segmentation has none"),
        ({"settings": {"update_clip": 1}}, "class means would leave beside it as they are"),
    ):
        with pytest.raises(medpfl.UserError, match=words):
            medpfl.run("class-means", sites=3, rounds=1, **fields)


def test_class_means_travel_both_ways_and_decide_the_mix():
    """Eleven classes of 84 features, and shares, in float32, beside the model: to the sites from round 2 on."""
    run = medpfl.run("class-means", sites=2, rounds=3, train_fraction=0.1, alone="no", settings={"means_align": 1})
    plain = medpfl.run("fedavg", sites=2, rounds=3, train_fraction=0.1, alone="no")
    assert not run.results["failures"]
    more, less = ([r["sites"]["site-1"] for r in made.results["rounds"]] for made in (run, plain))
    assert [a["sent_bytes"] - b["sent_bytes"] >= 4 * 11 * 85 for a, b in zip(more, less, strict=True)] == [True] * 3
    assert [a["received_bytes"] > b["received_bytes"] for a, b in zip(more, less, strict=True)] == [False, True, True]
    own = run.results["mixing"]["matrix"]
    assert own[0][0] > 0.5 < own[1][1]


def test_sites_get_mixes_of_their_own_that_are_of_the_rounds_models():
    """With next to no weight of the others a site's model is its own, with equal weights all have the same."""
    options = {"sites": 3, "rounds": 2, "train_fraction": 0.1, "alone": "no"}
    alone, same = (
        medpfl.run("fedamp", settings={"amp_own": own, "amp_sharpness": 0.0, "mu": 0.0}, **options)
        for own in (1 - 1e-12, 1 / 3)
    )
    assert not alone.results["failures"] + same.results["failures"]
    assert alone.results["mixing"]["matrix"] == pytest.approx(np.eye(3))
    local = medpfl.run("local", **options)
    assert alone.results["final"]["last"]["sites"] == local.results["final"]["last"]["sites"]
    first, *others = ([*run.parameters()] for run in same.models.values())
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_the_stronger_the_penalty_the_nearer_the_first_model():
    """Without a step, freely, and held."""
    first, loose, tight = (
        medpfl.run("l2-sp", model="group-norm-cnn", sites=2, rounds=2, train_fraction=0.1, settings=settings)
        for settings in ({"lr": 1e-12}, {"lr": 0.05, "anchor": 0}, {"lr": 0.05, "anchor": 10})
    )

    def moved(run):
        pairs = zip(run.models["site-1"].parameters(), first.models["site-1"].parameters(), strict=True)
        return sum((a - b).square().sum().item() for a, b in pairs)

    assert 0 < moved(tight) < 0.5 * moved(loose)
