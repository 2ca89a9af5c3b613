"""What leaves a site of a mechanism's mistake of form."""

import pytest
import torch
from tiny import config, sites_of

from medpfl.algorithms.fedprox import Proximal
from medpfl.core.channels import Channel, like
from medpfl.core.messages import Message
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.words import UNKNOWN, WRONG_FORM
from medpfl.training.part import Beside, Outcome, Part


def trained(monkeypatch, begin, **fields):
    """The gate of a run of FedProx whose mechanism begins so, and a site's answer to its first round."""
    monkeypatch.setattr(Proximal, "begin", begin)
    federation = Federation.of(config("fedprox", **fields))
    message = Message("train", 1, dict(federation.initial_shared))
    return federation.gate(), answer(sites_of(federation)["site-1"], message, federation.model())


@pytest.mark.parametrize(
    ("hook", "begin", "words"),
    [
        ("begin", lambda *_: [], "its begin gave list of 0, not a Part"),
        ("begin", lambda *_: Part(term="mu"), "its Part has 'mu' as term, not a function"),
        ("term", lambda *_: Part(term=lambda: 0.5), "its term gave 0.5, not a scalar tensor"),
        ("beside", lambda *_: Part(beside=[Beside(lambda x, y: x, 1.0)]), "its samples beside the site's own are"),
        ("end", lambda *_: Part(end=lambda: Outcome(state={"a": 1.0})), "its state has 'a', float, not a tensor"),
    ],
)
def test_of_a_mistake_of_form_the_names_of_the_mechanism_and_its_hook_leave(monkeypatch, hook, begin, words):
    gate, failed = trained(monkeypatch, begin)
    assert failed.reason.startswith(f"proximal: {words}")
    assert gate.reason(failed.reason) == UNKNOWN
    assert failed.told == WRONG_FORM(hook, "proximal", "train") == gate.reason(failed.told)


def test_no_mechanism_but_the_runs_is_named(monkeypatch):
    """Its code could call itself after what it has read."""

    def begin(self, round_):
        self.name = "jane-doe"
        return []

    gate, failed = trained(monkeypatch, begin)
    assert "jane-doe" in failed.told
    assert gate.reason(failed.told) == UNKNOWN


def test_what_leaves_and_what_is_kept_are_not_the_networks_own_memory(monkeypatch):
    """In one process the next site trains in the same network."""

    def channels(self, run, model, split):
        return (Channel("proximal", True, like(split.shared_views(model)), ("train",), "its parameters"),)

    def begin(self, round_):
        own = round_.split.shared_views(round_.model)

        def end():
            found = {name: p.detach() for name, p in own.items()}
            return Outcome(state=found, sends={"proximal": found})

        return Part(end=end)

    def leaving(self, shared, round_):
        return {**shared, **{name: p.detach() for name, p in round_.split.shared_views(round_.model).items()}}

    for name, hook in {"channels": channels, "begin": begin, "leaving": leaving}.items():
        monkeypatch.setattr(Proximal, name, hook)
    federation = Federation.of(config("fedprox"))
    site, model = sites_of(federation)["site-1"], federation.model()
    message = Message("train", 1, dict(federation.initial_shared), info={"asked": ["proximal"]})
    sent = site.handle(message, model).tensors
    left = model.state_dict()["fc2.bias"].clone()
    model.fc2.bias.data.fill_(7.0)
    for found in (sent["fc2.bias"], sent["proximal/fc2.bias"], site.store.get("proximal", 1)["fc2.bias"]):
        assert torch.equal(found, left)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_leaves_by_a_mechanism_is_finite_before_it_is_clipped_and_noised(monkeypatch, bad):
    """Clipped, an update with one such value is a finite number far beyond the bound, which noise does not hide."""

    def leaving(self, shared, round_):
        return {name: torch.where(torch.arange(t.numel()).view(t.shape) == 0, bad, t) for name, t in shared.items()}

    monkeypatch.setattr(Proximal, "leaving", leaving)
    gate, failed = trained(
        monkeypatch, Proximal.begin, personal="batch-norm", settings={"update_clip": 1.0, "update_noise": 1.0}
    )
    assert "with values that are not finite" in failed.reason
    assert gate.reason(failed.told) == WRONG_FORM("leaving", "proximal", "train")
