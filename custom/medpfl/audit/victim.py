"""What an attacker knows of a site, and the line on which it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Message, Update
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.seeding import generator
from medpfl.core.site_data import PARTS, Part, SiteData
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.policy import SitePolicy
from medpfl.site.store import MemoryStore


class Victim(Protocol):
    """A site as its server meets it at the beginning of a run."""

    def __call__(self, message: Message) -> Update | Failure:
        """The site's answer."""


@dataclass(frozen=True)
class Known:
    """What a server knows of a run without asking a site: an attack reads this and answers, and nothing else.

    Attributes:
        config: the run.
        split: what is shared.
        make_model: the seeded first model, afresh.
        initial_shared: the shared part of the first model.
        initial_personal: the personal part of the first model, where a site begins.
        site: the site's name.
        shape: of one sample, (C, H, W) or (S, C, H, W).
        classes: number of classes.
        policy: the site's, which a careful attacker has read.
        f: the state of the pretrained model that an honest server of this run sends; None where there is none.
        statistics: the channel in which the answer to the hello has averages over the site's data; empty for none.
        of_classifier: they are of the classification layer's input alone.
    """

    config: RunConfig
    split: ParameterSplit
    make_model: Callable[[], nn.Module]
    initial_shared: State
    initial_personal: State
    site: str
    shape: tuple[int, ...]
    classes: int
    policy: SitePolicy
    f: State | None = None
    statistics: str = ""
    of_classifier: bool = False

    def model_of(self, shared: Mapping[str, Tensor]) -> nn.Module:
        """A model with these shared values and the first personal ones."""
        model = self.make_model()
        self.split.load_shared(model, shared)
        self.split.load_personal(model, self.initial_personal)
        return model

    @property
    def whole(self) -> frozenset[str]:
        """Entries that are shared as a whole, so that a server sets all of them."""
        return frozenset(self.split.shared_names) - frozenset(self.split.personal_names)


@dataclass(frozen=True)
class Truth:
    """What the site has, to judge by: images (n, C, H, W) in [-1, 1] and labels (n,) by part.

    The slices of a bag count as images of their own.
    """

    images: Mapping[Part, Tensor]
    labels: Mapping[Part, Tensor]

    @classmethod
    def of(cls, data: SiteData) -> Truth:
        """All of a site's samples."""
        images, labels = {}, {}
        for part in PARTS:
            batches = list(data.batches(part, 256)) if data.samples(part) else []
            if batches:
                x = torch.cat([x for x, _ in batches]).cpu()
                images[part] = x.flatten(0, 1) if x.ndim == 5 else x
                labels[part] = torch.cat([y for _, y in batches]).cpu()
        return cls(images, labels)


@dataclass
class Line:
    """Questions to one site, counted, with the words of its refusals.

    Attributes:
        open_victim: the site at the beginning of the run; each call gives one that knows nothing of earlier ones.
    """

    open_victim: Callable[[], Victim]
    asked: int = 0
    answered: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new run of the same job."""
        self._victim = self.open_victim()

    def ask(self, message: Message) -> Update | None:
        """The site's answer; None if it refuses."""
        self.asked += 1
        reply = self._victim(message)
        if isinstance(reply, Failure):
            self.refusals[reply.reason] += 1
            return None
        self.answered += 1
        return reply


def hello(known: Known, f: Mapping[str, Tensor] | None = None) -> Message:
    """The greeting of a run, with ``f`` in the place of the honest pretrained model."""
    info: dict[str, Any] = {"split": known.split.description()}
    if not known.config.mixer.under_model:
        return Message("prepare", 0, {}, info)
    info["asked"] = [known.statistics]
    return Message("prepare", 0, dict(known.f if f is None else f), info)


def ask_anew(line: Line, known: Known, *questions: Message) -> list[Update] | None:
    """The answers to questions one after the other; where one is refused, once more in a new run of the same job."""
    for fresh in (False, True):
        if fresh:
            line.begin()
            if line.ask(hello(known)) is None:
                return None
        answers = []
        for question in questions:
            if (reply := line.ask(question)) is None:
                break
            answers.append(reply)
        else:
            return answers
    return None


@dataclass(frozen=True)
class Exchange:
    """Weights that a site began a round with, and what it answered."""

    sent: State
    update: Update

    @property
    def change(self) -> State:
        """What the round's training did to the shared state."""
        return {name: self.update.tensors[name] - tensor for name, tensor in self.sent.items()}


class Foothold:
    """Gets a site to train from weights of the server's choice, by the boldest way that it lets pass.

    At once; if that is refused, in a new run after an honest first round, in steps as long as the policy's
    ``largest_jump`` lets pass, one a round.
    """

    def __init__(self, line: Line, known: Known) -> None:
        self.line, self.known = line, known
        self.way = "at once"
        self.round = 1
        self._last: Exchange | None = None

    def train_from(self, target: State) -> Exchange | None:
        """One round of training from ``target``; None if the site does not let it come to that."""
        if self.way == "at once":
            if found := self._train(target):
                return found
            self.way = "after an honest round"
            if not self._begin_honestly():
                return None
        while self._last and self.round < self.known.config.rounds:
            step = self._step(target)
            if not (found := self._train(step)):
                return None
            if step is target:
                return found
        return None

    def _train(self, shared: State) -> Exchange | None:
        update = self.line.ask(Message("train", self.round + 1, shared, {"best_round": 0}))
        if update is None:
            return None
        self.round += 1
        self._last = Exchange(shared, update)
        return self._last

    def _begin_honestly(self) -> bool:
        self.line.begin()
        self.round = 0
        if self.line.ask(hello(self.known)) is None:
            return False
        return self._train(self.known.initial_shared) is not None

    def _step(self, target: State) -> State:
        """As far towards the target as the policy lets a round's weights jump."""
        if not self.known.policy.largest_jump:
            return target
        sent, change = self._last.sent, self._last.change
        distance = norm({name: tensor - sent[name] for name, tensor in target.items()})
        reach = 0.95 * self.known.policy.largest_jump * norm(change)
        if distance <= reach:
            return target
        return {name: sent[name] + (tensor - sent[name]) * (reach / distance) for name, tensor in target.items()}


def norm(state: Mapping[str, Tensor]) -> float:
    """Euclidean norm of all entries together."""
    return float(sum(t.double().square().sum() for t in state.values())) ** 0.5


def honest_rounds(line: Line, known: Known, rounds: int) -> list[Exchange]:
    """An honest run whose server returns to the site what it sent; it ends at the first refusal."""
    exchanges: list[Exchange] = []
    line.begin()
    if line.ask(hello(known)) is None:
        return exchanges
    shared = known.initial_shared
    for round_ in range(1, min(rounds, known.config.rounds) + 1):
        if (update := line.ask(Message("train", round_, shared, {"best_round": 0}))) is None:
            return exchanges
        exchanges.append(Exchange(dict(shared), update))
        shared = {name: update.tensors[name].clone() for name in shared}
    return exchanges


def known_of(federation: Federation, name: str, data: SiteData, policy: SitePolicy) -> Known:
    """What the server of this federation knows."""
    x, _ = next(iter(data.training_batches(1, generator(federation.config.seed, "audit", "shape"))))
    channel = next((c for c in federation.channels if c.to_server and "prepare" in c.tasks), None)
    layers = {entry.rpartition("/")[0] for entry in channel.entries} if channel else set()
    return Known(
        config=federation.config,
        split=federation.split,
        make_model=federation.model,
        initial_shared=federation.initial_shared,
        initial_personal=federation.initial_personal,
        site=name,
        shape=tuple(x.shape[1:]),
        classes=_classes(federation, x),
        policy=policy,
        f=_honest_f(federation),
        statistics=channel.name if channel else "",
        of_classifier=bool(channel) and layers == {federation.split.classification_layer(federation.model())[0]},
    )


def victims(federation: Federation, name: str, data: SiteData, policy: SitePolicy) -> Callable[[], Victim]:
    """Opens the site as it is before a run, again and again, up to the policy's number of experiments.

    Each time it has an empty store, and stands behind the run's contract and the site's policy and gate.
    """
    site = replace(federation.site(name, MemoryStore(), policy), data=data)
    model, opened = federation.model(), Counter[str]()

    def open_victim() -> Victim:
        opened["runs"] += 1
        if policy.experiments and opened["runs"] > policy.experiments:
            words = f"policy: the data have served {policy.experiments} experiments, which is the limit (experiments)"
            return lambda message: Failure(name, message.round, words)
        fresh = federation.guarded(replace(site, store=MemoryStore()), policy=policy)
        return lambda message: answer(fresh, message, model)

    return open_victim


def _classes(federation: Federation, x: Tensor) -> int:
    from medpfl.models import logits

    with torch.inference_mode():
        return int(logits(federation.model().eval()(x)).shape[1])


def _honest_f(federation: Federation) -> State | None:
    """The run's f; where only all sites' data would give it, the first model in its place."""
    if not federation.config.mixer.under_model:
        return None
    try:
        return federation.plan(steps=False).pretrained
    except UserError:
        return {name: tensor.cpu() for name, tensor in federation.model().state_dict().items()}
