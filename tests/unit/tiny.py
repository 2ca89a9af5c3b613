"""A federation small enough to compute by hand: 4 x 4 images, two linear layers with one batch norm between."""

import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from medpfl.algorithms.mechanism import LocalRound, Mechanism
from medpfl.config.run import RunConfig, make_config
from medpfl.core.messages import Message
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.permitted_code import permit
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import ImageTensors
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.rounds import Plan, advance, messages
from medpfl.site.store import MODEL, MemoryStore
from medpfl.site.worker import Site
from medpfl.tasks import TASKS
from medpfl.training.loop import Objective
from medpfl.training.objective import objective_of

permit("tiny")  # the configurations below name it, in processes of their own too


class Net(nn.Module):
    def __init__(self, num_classes: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(6, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.dropout(torch.relu(self.norm(self.fc1(x.flatten(1))))))


class Half(Net):
    """In a type that numpy does not know."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__(num_classes)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(torch.bfloat16)).float()


class Odd(Net):
    """With an entry in its state that no site could take up."""

    def __init__(self, entry: str, num_classes: int = 3) -> None:
        super().__init__(num_classes)
        self.said = {"said": entry} if entry == "said" else torch.zeros(1)
        odd = {
            "lazy": nn.UninitializedBuffer(),
            "sparse": torch.eye(2).to_sparse(),
            "expanded": torch.ones(1).expand(2),
            "infinite": torch.tensor([0.0, -torch.inf]),
        }
        self.register_buffer("odd", odd.get(entry))

    def get_extra_state(self) -> object:
        return self.said

    def set_extra_state(self, state: object) -> None:
        self.said = state


class Projected(nn.Module):
    """Behind a random projection that is no part of its state."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        time.sleep(0.02)  # time for another one to be drawn from the same generator
        self.register_buffer("projection", torch.randn(16, 6), persistent=False)
        self.fc = nn.Linear(6, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x.flatten(1) @ self.projection).cos())


class Remembering(nn.Module):
    """Takes off what the images it was trained on last had in common, which is no part of its state."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.register_buffer("common", torch.zeros(16), persistent=False)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.common = x.flatten(1).mean(0)
        return self.fc(x.flatten(1) - self.common)


class Wide(nn.Module):
    """Its second layer is not the first that images meet, and has rows enough to copy each other."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.fc0 = nn.Linear(16, 64)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.fc0(x.flatten(1)).relu()).relu())


def imprinting() -> State:
    """Weights of :class:`Wide` by which a server would read single images from an update."""
    weights = Wide().state_dict()
    weights["fc1.weight"][:] = 1 / 64
    weights["fc1.bias"][:] = -torch.linspace(0, 1, 32)
    return weights


def images(train: int = 13, validation: int = 5, test: int = 7, seed: int = 0, brightness: int = 0) -> ImageTensors:
    """Random images whose class is the brightest of three places."""
    g = torch.Generator().manual_seed(seed)
    sizes = {"train": train, "validation": validation, "test": test}
    labels = {part: torch.arange(n) % 3 for part, n in sizes.items()}
    pixels = {}
    for part, n in sizes.items():
        x = torch.randint(brightness, 150, (n, 1, 4, 4), generator=g)
        x[torch.arange(n), 0, 0, labels[part]] += 100
        pixels[part] = x.to(torch.uint8)
    return ImageTensors(images=pixels, labels=labels)


def site_data(site: str, seed: int, **sizes: int) -> ImageTensors:
    """What a configuration names as ``tiny:site_data``: every site has other images, and another number of them."""
    number = int(site.rpartition("-")[2])
    return images(**{"train": 11 + 2 * number, **sizes}, seed=100 * seed + number, brightness=20 * number)


FEW_STEPS = {"finetune_steps": 20}
"""Settings of FedBlend where the number of its further steps, 200, does not matter."""


def config(algorithm: str = "fedavg", **fields) -> RunConfig:
    settings = {"lr": 0.1, "batch_size": 4} | fields.pop("settings", {})
    defaults = {"data": "tiny:site_data", "model": "tiny:Net", "sites": 3, "rounds": 3, "device": "cpu", "alone": "no"}
    return make_config(algorithm=algorithm, settings=settings, **(defaults | fields))


def plan_of(federation: Federation) -> Plan:
    """The federation's plan; where a method needs a pretrained model, the first model serves."""
    pretrained = federation.model().state_dict() if federation.config.mixer.under_model else None
    return replace(federation.plan(pretraining=False), pretrained=pretrained)


def sites_of(federation: Federation) -> dict[str, Site]:
    return {name: federation.site(name, MemoryStore()) for name in federation.config.site_names}


def run(run_config: RunConfig, change=lambda sites: None, *, workers: int = 1, **options):
    """Runs a federation in this process; ``change`` may tamper with the sites before. Returns its state and sites."""
    federation = Federation.of(run_config)
    sites = sites_of(federation)
    change(sites)
    return run_in_process(plan_of(federation), sites, federation.model, workers=workers, **options), sites


def names_sent(federation: Federation) -> tuple[set[str], dict[str, Site]]:
    """Names of the tensors that sites send at the hello and in two rounds, and the sites."""
    plan, sites, state = plan_of(federation), sites_of(federation), ServerState()
    model, seen = federation.model(), set()
    for _ in range(3):
        asked = messages(plan, state)
        replies = [sites[name].handle(message, model) for name, message in asked.items()]
        seen |= {name for reply in replies for name in reply.tensors}
        state = advance(plan, state, replies, 0.0)
    return seen, sites


def objective_with(
    mechanism: Mechanism, model: nn.Module, split: ParameterSplit, brought: State | None = None, **fields
) -> Objective:
    """What a site minimises whose run has this mechanism alone; ``brought``: what came in channels."""
    message = Message("train", 1, brought or {})
    round_ = LocalRound("site-1", config(**fields), 1, message, model, split, images(), lambda: None, lambda: None)
    part = mechanism.begin(round_)
    return objective_of(model, [part] if part else [], TASKS["classification"].loss)


def last_models(state, sites: Mapping[str, Site]) -> dict[str, dict[str, Tensor]]:
    return {name: site.store.get(MODEL, state.round) for name, site in sites.items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same entries with the same bits."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def without_channels(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def figures(history) -> list:
    """A run's history without its timings."""
    untimed = [{k: v for k, v in record.items() if k != "seconds"} for record in history]
    for record in untimed:
        record["sites"] = {s: {k: v for k, v in m.items() if k != "seconds"} for s, m in record["sites"].items()}
    return untimed


@contextmanager
def no_space(full: bool = True, left: int = 64) -> Iterator[None]:
    """The kernel refuses to write files beyond so many bytes, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]) if full else before)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
