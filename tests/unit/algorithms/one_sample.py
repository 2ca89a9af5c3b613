"""A site of one sample, x = 1 of class 0, and a network of two weights: every gradient is known by hand.

With the weights a, b the classes' probabilities are the softmax of (a, b), and the gradient is (p0 - 1, p1).
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from medpfl.config.run import RunConfig, make_config
from medpfl.core.declarations import parse_declaration
from medpfl.core.messages import Message, named
from medpfl.core.parameters import ParameterSplit
from medpfl.core.seeding import Chance
from medpfl.core.site_data import ImageTensors
from medpfl.site.method import Method


class TwoWeights(nn.Module):
    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor(weights or (0.0, 0.0))[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def weights(state: dict[str, Tensor], name: str = "fc.weight") -> list[float]:
    return state[name].flatten().tolist()


def both(a: float, b: float) -> dict[str, Tensor]:
    return {"fc.weight": torch.tensor([[a], [b]])}


def data(samples: int = 1) -> ImageTensors:
    images = torch.ones(samples, 1, 1, 1)
    labels = torch.zeros(samples, dtype=torch.int64)
    parts = ("train", "validation", "test")
    return ImageTensors(images=dict.fromkeys(parts, images), labels=dict.fromkeys(parts, labels))


def config(algorithm: str, **settings: float) -> RunConfig:
    fields = {"sites": 4, "rounds": 3, "device": "cpu", "data": "one_sample:site", "model": "one_sample:TwoWeights"}
    return make_config(algorithm=algorithm, settings={"lr": 0.1, "batch_size": 1, **settings}, **fields)


def method(run: RunConfig, model: nn.Module, *, kept=None, brought=None, personal: str | None = None) -> Method:
    """The run's mechanisms at the site, in round 2, with what each has kept and what the server sent beside."""
    split = ParameterSplit(model, parse_declaration(personal or run.resolved_personal))
    tensors = split.shared_state(model)
    for channel, sent in (brought or {}).items():
        tensors |= named(channel, sent)

    channels = {c: part for part in run.parts for c in part.channels(run, model, split)}
    given = {"config": run, "split": split, "data": data(), "chance": Chance(run.seed), "channels": channels}
    site = SimpleNamespace(name="site-1", **given)
    message = Message("train", 2, tensors)
    return Method.of(site, message, model, 2, kept=(kept or {}).get, noise=lambda: None)


def trained(run: RunConfig, model: nn.Module, **options) -> Method:
    """After a round of one epoch, which is one step."""
    found = method(run, model, **options)
    found.begin()
    found.train(model, data(), 1, torch.Generator().manual_seed(0))
    found.end()
    return found
