"""A site's side of every task: (personal state, message) -> (personal state, update)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from medpfl.config import RunConfig
from medpfl.messages import STATISTICS_OF, Failure, Message, Update, named_statistics
from medpfl.parameters import ParameterSplit, State, StateError, distance
from medpfl.seeding import generator
from medpfl.site.data import Batch, SiteData, endless_batches
from medpfl.site.delivery import Delivery, Which
from medpfl.site.evaluation import evaluate
from medpfl.site.objectives import site_objective
from medpfl.site.privacy_noise import noise_source
from medpfl.site.private_update import protected_update
from medpfl.site.statistics import running_statistics, statistics_under
from medpfl.site.store import SiteStore, StateNotKept
from medpfl.site.training import TrainingDiverged, train_epochs
from medpfl.statefile import TornFile

logger = logging.getLogger(__name__)

PERSONAL, MODEL, DATA, BEST = "personal", "model", "data", "best"
"""Kinds of states in a site's store: after training in a round; the whole model after a round's mix; what the site's
data were when the run began; the round that the site has selected by itself, and its measure."""


@dataclass
class Site:
    """One site.

    Attributes:
        name: as the server knows it.
        config: the run.
        split: what is shared.
        initial_personal: the personal part of the seeded first model, where every site starts.
        data: the site's own.
        store: the site's own.
        delivery: where its models go at the end, to be used; None for nowhere.
        selects: the site selects its round by its own validation data, since its measures do not leave.
        secret: of the site, for the noise of differential privacy; None in a simulation alone, where it repeats.
    """

    name: str
    config: RunConfig
    split: ParameterSplit
    initial_personal: State
    data: SiteData
    store: SiteStore
    delivery: Delivery | None = None
    selects: bool = False
    secret: bytes | None = None

    def handle(self, message: Message, model: nn.Module) -> Update:
        """Does what a message asks.

        Args:
            message: from the server.
            model: of the run's architecture, on the device, with any values: they are replaced.

        Returns:
            What leaves the site.

        Raises:
            StateError, TrainingDiverged: the task cannot be done; the site's stored state is untouched.
        """
        tasks = {"prepare": self._prepare, "train": self._train, "validate": self._validate, "test": self._test}
        return carry_out(self.name, message, lambda: tasks[message.task](message, model))

    def _prepare(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        if difference := self.split.first_difference(message.info["split"]):
            raise StateError(f"{self.name} and the server disagree on what is shared: {difference}")
        if not self.data.samples("train"):
            raise StateError(f"{self.name} has no training sample")
        for kind in (PERSONAL, MODEL, BEST):
            self.store.keep(kind, ())  # a site is greeted once a run: what lies here is from an earlier one
        if self.delivery:
            self.delivery.put_aside()
        if (digest := self._digest) is not None:
            self.store.put(DATA, 0, {"digest": digest})
        metrics = {"samples": {part: self.data.samples(part) for part in ("train", "validation", "test")}}
        if not (kind := requested_statistics(self.config, message)):
            return {}, metrics
        model.load_state_dict(dict(message.tensors))
        noise = noise_source(self.config, self.name, "statistics", 0, self.secret)
        return named_statistics(statistics_under(kind, model, self.data, self.config.all_settings, noise)), metrics

    @cached_property
    def _digest(self) -> Tensor | None:
        digest = self.data.digest()
        return None if digest is None else torch.frombuffer(bytearray(digest), dtype=torch.uint8)

    def _same_data(self) -> None:
        """Other data mean another split: former training samples might be tested on."""
        try:
            before = self.store.get(DATA, 0)
        except TornFile as error:
            logger.warning("%s: %s", self.name, error)
            raise StateError(
                f"{self.name}: the record of its data is damaged, so nobody can say whether they have changed since "
                "the run began; begin a new experiment"
            ) from None
        if before is not None and self._digest is not None and not torch.equal(before["digest"], self._digest):
            raise StateError(
                f"{self.name}: its data have changed since the run began, so training and test samples would mix; "
                "restore them or begin a new experiment"
            )

    def _train(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        config, round_ = self.config, message.round
        asked = requested_statistics(config, message)
        self._same_data()
        metrics = self.load(message, model, round_ - 1)
        metrics["validation"] = self._validated(model, round_ - 1, message.info.get("best_round", 0))
        order = generator(config.seed, self.name, round_, "shuffle")
        shown = self._impression(message, model)
        objective = site_objective(model, self.split, config.all_settings, shown)
        torch.manual_seed(order.initial_seed())  # for layers like dropout, which draw from the global generator
        epochs = config.local_epochs
        metrics["train_loss"] = train_epochs(model, self.data, config.all_settings, epochs, order, objective)
        shared = self.split.shared_state(model)
        self.split.check_shared(shared)
        personal = self.split.personal_state(model)
        self.split.check_personal(personal)
        self.store.put(PERSONAL, round_, personal)
        # A server whose checkpoint is damaged asks for round_ - 1 again, which starts from round_ - 2.
        self.store.keep(PERSONAL, (round_ - 2, round_ - 1, round_))
        noise = noise_source(config, self.name, "update", round_, self.secret)
        shared = protected_update(message.shared, shared, config.all_settings, noise)
        if asked == "running":
            shared |= named_statistics(running_statistics(model))
        return shared, metrics

    def _impression(self, message: Message, model: nn.Module) -> Iterator[Batch] | None:
        order = generator(self.config.seed, self.name, message.round, "impression")
        return impression_batches(message, model, self.config.all_settings["batch_size"], order)

    def _validate(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        metrics = self.load(message, model, message.round)
        metrics["validation"] = self._validated(model, message.round, message.info.get("best_round", 0))
        return {}, metrics

    def _test(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        self._same_data()
        last, selected = message.round, message.info["selected_round"]
        if self.selects:
            selected = self._own_best()[0] or last
        measured: dict[int, Any] = {}
        for round_ in (selected, last):
            if round_ not in measured and (state := self._stored(MODEL, round_)) is not None:
                model.load_state_dict(state)
                measured[round_] = evaluate(model, self.data, "test")
        if not measured:
            raise StateError(
                f"{self.name} has a model neither of round {selected} nor of round {last}: it was absent, or the files "
                "are damaged"
            )
        # A site that was absent when one of the two was validated is judged by the other.
        tested: dict[Which, int] = {
            "selected": selected if selected in measured else last,
            "last": last if last in measured else selected,
        }
        self.store.keep(MODEL, measured)
        if self.delivery:
            self._deliver(self.delivery, tested, measured, model)
        return {}, {"test": {which: measured[round_] for which, round_ in tested.items()}, "tested": tested}

    def _deliver(
        self, delivery: Delivery, tested: Mapping[Which, int], measured: Mapping[int, Any], model: nn.Module
    ) -> None:
        samples = {part: self.data.samples(part) for part in ("train", "validation", "test")}
        for which, round_ in tested.items():
            state = self.store.get(MODEL, round_)
            model.load_state_dict(state)
            validation = evaluate(model, self.data, "validation")
            record = {"samples": samples, "validation": validation, "test": measured[round_]}
            try:
                delivery.write(which, self.name, round_, state, record)
            except OSError as error:  # the answer goes out all the same, and the store has the model
                logger.warning("%s: the %s model could not be written: %s", self.name, which, error)

    def load(self, message: Message, model: nn.Module, personal_round: int) -> dict[str, Any]:
        """Makes the model what the site uses after it received its mix of ``personal_round``.

        Returns:
            ``restored_round`` if a damaged personal state was replaced by that of an earlier round (0: the first).
        """
        earlier, personal, damaged = self._personal(personal_round)
        self.split.load_shared(model, message.shared)
        self.split.load_personal(model, personal)
        return {"restored_round": earlier} if damaged else {}

    def _personal(self, round_: int) -> tuple[int, State, bool]:
        """The last personal state that the site has, its round, and whether a later one is damaged."""
        damaged = False
        for earlier in range(round_, 0, -1):
            # A site that missed rounds has none of them.
            try:
                if (state := self.store.get(PERSONAL, earlier)) is not None:
                    return earlier, state, damaged
            except TornFile as error:
                logger.warning("%s: %s; an earlier one is used", self.name, error)
                damaged = True
        return 0, self.initial_personal, damaged

    def _stored(self, kind: str, round_: int) -> State | None:
        """A stored state; a damaged one is as good as none."""
        try:
            return self.store.get(kind, round_)
        except TornFile as error:
            logger.warning("%s: %s", self.name, error)
            return None

    def _validated(self, model: nn.Module, round_: int, best_round: int) -> dict[str, Any] | None:
        """Measures of the received model on validation data; keeps the model while it may still be selected.

        A site without validation data keeps it too: the other sites' may select the round.
        """
        if round_ == 0:
            return None
        self.store.put(MODEL, round_, {name: t.detach().clone() for name, t in model.state_dict().items()})
        if not self.selects:
            self.store.keep(MODEL, (best_round, round_))
            return evaluate(model, self.data, "validation")
        best, score = self._own_best()
        found = evaluate(model, self.data, "validation")
        value = None if found is None else found[self.config.select_by]
        if value is not None and (not best or value > score):
            best = round_
            self.store.put(BEST, 0, {"round": torch.tensor(round_), "score": torch.tensor(value, dtype=torch.float64)})
        self.store.keep(MODEL, (best, round_))
        return found

    def _own_best(self) -> tuple[int, float]:
        """The round that the site has selected by itself so far, and its measure; round 0 if there is none."""
        state = self._stored(BEST, 0)
        return (0, 0.0) if state is None else (int(state["round"]), float(state["score"]))

    def received(self, round_: int, model: nn.Module) -> State | None:
        """The shared part that the site was sent for a round, from its store; None if that is not kept."""
        if (state := self._stored(MODEL, round_ - 1)) is None:
            return None
        model.load_state_dict(state)
        return {name: tensor.cpu() for name, tensor in self.split.shared_state(model).items()}

    def first_step(self, start: State, model: nn.Module) -> float:
        """How far one round of training leads from the first model: Euclidean distance over all that is shared."""
        self.split.load_shared(model, start)
        self.split.load_personal(model, self.initial_personal)
        order = generator(self.config.seed, self.name, 0, "first step")
        torch.manual_seed(order.initial_seed())
        train_epochs(model, self.data, self.config.all_settings, self.config.local_epochs, order)
        return distance(start, {name: tensor.cpu() for name, tensor in self.split.shared_state(model).items()})


def requested_statistics(config: RunConfig, message: Message) -> str | None:
    """The kind of statistics that a message asks for, if any; StateError if the run's mixing does not rest on them."""
    kind = message.info.get("statistics")
    if kind is None and message.task == "statistics":
        raise StateError(f"mixing {config.resolved_mixing} needs no 'other' statistics, so none leave")
    if kind is not None and kind != STATISTICS_OF.get(config.resolved_mixing):
        raise StateError(f"mixing {config.resolved_mixing} needs no {kind!r} statistics, so none leave")
    return kind


def impression_batches(
    message: Message, model: nn.Module, batch_size: int, order: torch.Generator
) -> Iterator[Batch] | None:
    """Endless batches, on the model's device, of the impression that a message brings; None if it brings none."""
    if message.impression is None:
        return None
    device = next(model.parameters()).device
    return endless_batches(*(tensor.to(device) for tensor in message.impression), batch_size, order)


def carry_out(name: str, message: Message, task: Callable[[], tuple[State, dict[str, Any]]]) -> Update:
    """The update that a site's task makes: its tensors and metrics, with the time they took.

    Args:
        name: the site's.
        message: what asked for it.
        task: gives the tensors and the metrics.
    """
    started = time.perf_counter()
    tensors, metrics = task()
    return Update(
        site=name,
        round=message.round,
        tensors=tensors,
        metrics=metrics,
        seconds=time.perf_counter() - started,
    )


class Party(Protocol):
    """Who answers the server's messages at a site."""

    name: str
    data: SiteData

    def handle(self, message: Message, model: nn.Module) -> Update:
        """Does what a message asks."""


def answer(site: Party, message: Message, model: nn.Module) -> Update | Failure:
    """The site's answer, or in words why there is none: a site's error must not end the others' run.

    Only this package's own messages travel. The text of any other error may name files or patients: it goes to the
    site's log, and only the error's type leaves.
    """
    try:
        return site.handle(message, model)
    except (StateError, StateNotKept, TrainingDiverged) as error:
        return Failure(site.name, message.round, str(error))
    except Exception as error:  # the user's own model or loader may raise anything; a damaged file names its path
        logger.warning("%s, %s in round %d: %s", site.name, message.task, message.round, error, exc_info=error)
        return Failure(
            site.name, message.round, f"{type(error).__name__} in task {message.task!r} (the site's log says more)"
        )
