"""Start weights of the server's choice, as a site's policy meets them."""

import torch
from safetensors.torch import save_file
from tiny import config
from torch import nn

from medpfl.algorithms.start import START
from medpfl.core.messages import Failure, Message, named
from medpfl.core.permitted_code import permit
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.policy import SitePolicy
from medpfl.site.store import MemoryStore

POLICY = SitePolicy(copied_rows=0.1)
permit("test_guard_start")


class Wide(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.fc0 = nn.Linear(16, 64)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.fc2(self.fc1(self.fc0(x.flatten(1)).relu()).relu())


def hello(tmp_path, weights, **fields):
    save_file(weights, tmp_path / "first.safetensors")
    federation = Federation.of(
        config("fedavg", model="test_guard_start:Wide", init=str(tmp_path / "first.safetensors"), **fields)
    )
    site = federation.guarded(federation.site("site-1", MemoryStore()), policy=POLICY)
    info = {"split": federation.split.description()}
    return answer(site, Message("prepare", 0, named(START, federation.start.state), info), federation.model())


def imprinting():
    weights = Wide().state_dict()
    weights["fc1.weight"][:] = 1 / 64
    weights["fc1.bias"][:] = -torch.linspace(0, 1, 32)
    return weights


def test_rows_that_copy_each_other_are_refused_in_start_weights_too(tmp_path):
    """Compared with themselves they would hold no more copies than the first model."""
    reply = hello(tmp_path, imprinting())
    assert isinstance(reply, Failure)
    assert reply.reason.startswith("contract: rows of 'fc1.weight' copy each other")


def test_in_personal_parts_too(tmp_path):
    assert isinstance(hello(tmp_path, imprinting(), personal="modules:fc1"), Failure)


def test_what_nobody_trains_shows_nothing(tmp_path):
    assert not isinstance(hello(tmp_path, imprinting(), frozen="modules:fc1"), Failure)


def test_other_start_weights_are_taken(tmp_path):
    assert not isinstance(hello(tmp_path, Wide().state_dict()), Failure)
