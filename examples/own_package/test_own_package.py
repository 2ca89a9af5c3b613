"""The penalty by hand, and both in a short run."""

from types import SimpleNamespace

import pytest
import torch
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
