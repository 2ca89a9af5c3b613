"""What a mechanism of one's own gives wrongly is said with its name, and never taken for nothing."""

import pytest
import torch
from tiny import Net, run, sites_of
from tiny import config as tiny_config

from medpfl.algorithms import algorithm
from medpfl.algorithms.fedprox import Proximal
from medpfl.core.errors import UserError
from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.core.seeding import generator
from medpfl.engine.federation import Federation
from medpfl.training.part import Outcome, Part


def trained(monkeypatch, begin):
    """A round of FedProx whose mechanism begins so."""
    monkeypatch.setattr(Proximal, "begin", begin)
    site = sites_of(Federation.of(tiny_config("fedprox")))["site-1"]
    model = Net()
    method = site._method(Message("train", 1, {}), model, 1, "update", 0)
    method.begin()
    loss = method.train(model, site.data, 1, generator(0))
    method.end()
    return loss


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (lambda *_: lambda: 0.0, r"proximal: its begin gave <function .*, not a Part"),
        (lambda *_: Part(term=lambda: 0.5), "proximal: its term gave 0.5, not a scalar tensor"),
        (lambda *_: Part(term=lambda: torch.ones(3)), r"proximal: its term gave a tensor \(3,\), not a scalar tensor"),
        (lambda *_: Part(term=lambda: torch.tensor(2.0)), "proximal: its term depends on no parameter that is trained"),
        (lambda *_: Part(end=lambda: None), "proximal: its end gave None, not an Outcome"),
        (
            lambda *_: Part(end=lambda: Outcome(sends={"norms": {"a": torch.zeros(3)}})),
            "proximal sends in 'norms', which is none of its channels to the server",
        ),
        (lambda *_: Part(end=lambda: Outcome(state={"a": 1.0})), "proximal: its state has 'a', float, not a tensor"),
        (
            lambda *_: Part(end=lambda: Outcome(state=torch.ones(2))),
            "proximal: its state is Tensor, not a dictionary of tensors",
        ),
    ],
)
def test_what_a_part_gives_wrongly(monkeypatch, begin, words):
    with pytest.raises(StateError, match=words):
        trained(monkeypatch, begin)


def test_a_term_may_be_nothing_or_depend_in_some_steps_alone(monkeypatch):
    trained(monkeypatch, lambda *_: Part(term=lambda: torch.zeros(())))

    def sometimes(self, round_):
        steps = iter(range(100))
        return Part(term=lambda: next(round_.model.parameters()).sum() * 0.1 if next(steps) else torch.tensor(1.0))

    trained(monkeypatch, sometimes)


def test_a_step_at_the_server_that_fails_is_named(monkeypatch):
    def step(turn):
        raise KeyError("norms")

    monkeypatch.setattr(Proximal, "server_step", lambda self, parts: step)
    words = (
        r"proximal: its step at the server failed after round 1 \(test_own_mistakes.py, line \d+\): KeyError: 'norms'"
    )
    with pytest.raises(UserError, match=words):
        run(tiny_config("fedprox"))


def test_a_module_for_a_method_is_answered_with_where_methods_are_found():
    with pytest.raises(UserError, match=r"found by an entry point of its package, docs/own\.md\)"):
        algorithm("mine:METHOD")
