"""A site's side of every task: (personal state, message) -> (personal state, update)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from medpfl.algorithms.mechanism import Mechanism
from medpfl.algorithms.start import START
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.errors import TornFile, UserError
from medpfl.core.messages import Message, Update
from medpfl.core.parameters import ParameterSplit, State, StateError, distance
from medpfl.core.seeding import Chance, seed_global
from medpfl.core.site_data import PARTS, SiteData
from medpfl.site import words
from medpfl.site.answer import carry_out
from medpfl.site.contract import digest
from medpfl.site.delivery import Delivery
from medpfl.site.ending import Ending
from medpfl.site.finishing import Finishing
from medpfl.site.hooks import calling
from medpfl.site.method import Method, requested
from medpfl.site.noise import RUN, draw_for_run, noise_source, of_run, of_weights
from medpfl.site.outputs import require_outputs
from medpfl.site.resting import SHARE, Resting
from medpfl.site.rival import Rival
from medpfl.site.same_data import require_same_data
from medpfl.site.selecting import Selecting
from medpfl.site.start import INIT
from medpfl.site.store import (
    BEST,
    DATA,
    FINISHED,
    MODEL,
    OPTIMIZER,
    PERSONAL,
    RECEIVED,
    SENT,
    USED,
    SiteStore,
    copied,
    keep_latest,
    usable,
)
from medpfl.training.loop import train_plainly

logger = logging.getLogger(__name__)

_QUESTION = "medpfl question"
"""No parameter's name."""


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
        chance: what is drawn at random in training: by the run's seed, or its own (:mod:`medpfl.site.chance`).
        channels: what travels besides the shared part, with the part of the method that each is of.
        delivery: where its models go at the end, to be used; None for nowhere.
        rival: what the site trains alone, beside; None for nothing.
        selects: the site selects its round by its own validation data: measures do not leave, or the model does not.
        secret: of the site, for the noise of differential privacy; None in a simulation, where it repeats.
        least: training patients of whom an update must be, by the site's policy.
        passes: gives its data as the epochs of a round see them, where somebody watches each pass over them.
    """

    name: str
    config: RunConfig
    split: ParameterSplit
    initial_personal: State
    data: SiteData
    store: SiteStore
    chance: Chance
    channels: Mapping[Channel, Mechanism] = field(default_factory=dict)
    delivery: Delivery | None = None
    rival: Rival | None = None
    selects: bool = False
    secret: bytes | None = None
    least: int = 0
    passes: SiteData | None = None
    _labels_fit: bool = field(default=False, init=False)
    _first_step: float | None = field(default=None, init=False)

    def handle(self, message: Message, model: nn.Module) -> Update:
        """Does what a message asks.

        Args:
            message: from the server.
            model: of the run's architecture, on the device, with any values: they are replaced.

        Returns:
            What leaves the site.

        Raises:
            StateError, TrainingDiverged: the task cannot be done; what the site keeps of rounds that it did stays.
        """
        tasks = {
            "prepare": self._prepare,
            "train": self._train,
            "follow": self._follow,
            "validate": self._validate,
            "test": self._test,
        }
        self._require_outputs(model)
        return carry_out(self.name, message, lambda: tasks[message.task](message, model))

    def _prepare(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        if difference := self.split.first_difference(message.info["split"]):
            raise StateError(words.OTHER_SPLIT(self.name, difference))
        if not self.data.samples("train"):
            raise StateError(words.NO_TRAINING_SAMPLE(self.name))
        self._require_suited(model)
        if self.rival:
            self.rival.forget()
        own = (PERSONAL, OPTIMIZER, MODEL, RECEIVED, SENT, FINISHED, USED, BEST, RUN)
        for kind in (*own, *(m.name for m in self.config.parts)):
            self.store.keep(kind, ())  # a site is greeted once a run: what lies here is from an earlier one
        if self._draws_noise:
            draw_for_run(self.store)
        if self.delivery:
            self.delivery.put_aside()
        if self._digest is not None:
            self.store.put(DATA, 0, {"digest": self._digest})
        self.store.keep(INIT, ())
        if start := message.brought(START):
            self.store.put(INIT, 0, start)
        metrics = {"samples": {part: self.data.samples(part) for part in PARTS}}
        metrics["selecting"] = self._selecting.seen
        asked = requested(self.config, self.upward("prepare"), message.asked)
        return self._method(message, model, 0, ("statistics", 0), 0).sent(asked), metrics

    def _require_outputs(self, model: nn.Module) -> None:
        """Before the first step in this process, whoever asks for it."""
        if not self._labels_fit:
            require_outputs(model, self.data, self.config.learned)
        self._labels_fit = True

    def _require_suited(self, model: nn.Module) -> None:
        """Where nobody knew the images' shape before, the network meets its mechanisms here first."""
        picky = [part for part in self.config.parts if type(part).suits is not Mechanism.suits]
        if not picky:
            return
        order = self.chance.order(self.name, "try", "shuffle")
        x, _ = next(iter(self.data.training_batches(2, order)))
        try:
            for part in picky:
                with calling(part, "suits"):
                    self._meet(part, model.eval(), x)
        finally:
            model.train()

    def _meet(self, part: Mechanism, model: nn.Module, x: torch.Tensor) -> None:
        try:
            part.suits(model, self.split, x)
        except UserError as error:  # says itself what does not suit
            raise StateError(str(error)) from None

    def upward(self, task: str) -> list[tuple[str, Mechanism]]:
        """The channels in which something may leave with the answer to a task, with their mechanisms."""
        return [(c.name, part) for c, part in self.channels.items() if c.to_server and task in c.tasks]

    def _method(self, message: Message, model: nn.Module, when: int | str, noise: tuple[str, int], last: int) -> Method:
        """The run's mechanisms, through one task: each with the state that it left in round ``last``, or before.

        Args:
            message: the task.
            model: with the values that it begins with.
            when: see :class:`~medpfl.algorithms.mechanism.LocalRound`.
            noise: of what, and of which round: the same answer has the same noise.
            last: see above.
        """
        counted = last if message.counted is None else min(last, message.counted)
        return Method.of(
            self,
            message,
            model,
            when,
            kept=lambda name: self._kept(name, last)[1],
            kept_counted=lambda name: self._kept(name, counted)[1],
            noise=lambda: noise_source(self.config, self.name, *noise, self.secret, self._noise_of(message)),
        )

    def _noise_of(self, message: Message) -> str:
        """What an answer's noise depends on besides: the run, or f."""
        if message.task == "prepare":
            return of_weights(message)
        return of_run(self.store, self.name) if self._draws_noise else ""

    @property
    def _draws_noise(self) -> bool:
        """Whether updates have noise of the site's own."""
        return bool(self.secret and self.config.all_settings.get("update_noise"))

    def _at_the_end(self, message: Message, model: nn.Module) -> Method:
        return self._method(message, model, "end", ("update", message.round), message.round)

    @cached_property
    def _digest(self) -> Tensor | None:
        digest = self.data.digest()
        return None if digest is None else torch.frombuffer(bytearray(digest), dtype=torch.uint8)

    def _train(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        config, round_ = self.config, message.round
        asked = requested(config, self.upward("train"), message.asked)
        metrics = self._begun(message, model)
        method = self._method(message, model, round_, ("update", round_), round_ - 1)
        method.begin()
        order = self.chance.order(self.name, round_, "shuffle")
        seed_global(order.initial_seed())
        watches = self.least > SHARE
        resting = Resting(self.data, order, config.local_epochs, method.own_beside) if watches else None
        with resting.watched(model, self.split.shared_names) if resting else nullcontext():
            metrics["train_loss"] = method.train(model, self.passes or self.data, config.local_epochs, order)
        if resting:
            resting.require_many(self.least)
        method.end()
        if numbers := method.numbers():
            metrics["numbers"] = numbers
        shared = self.split.shared_state(model)
        self.split.check_shared(shared)
        personal = self.split.personal_state(model)
        self.split.check_personal(personal)
        for kind, state in ({PERSONAL: personal} | method.states()).items():
            self.store.put(kind, round_, state)
            keep_latest(self.store, kind, round_, message.counted_rounds or ())
        leaving = method.leaving({name: tensor.cpu() for name, tensor in shared.items()})
        if config.all_settings.get("update_noise"):
            leaving = self._as_first(message, leaving)
        return leaving | method.sent(asked), metrics

    def _begun(self, message: Message, model: nn.Module) -> dict[str, Any]:
        """A round up to where the site trains, or others do: the one that it trains alone trains in each.

        Returns:
            Measures of what it uses now; the model is what came.
        """
        require_same_data(self.name, self.store, self._digest)
        if self.rival:
            self.rival.train(model, message.round)
        metrics = self.load(message, model, message.round - 1)
        return metrics | self._validated(message, model, message.round - 1)

    def _follow(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        return {}, self._begun(message, model)

    def _as_first(self, message: Message, leaving: State) -> State:
        """What left with noise before, where the same is asked again.

        Loaders of one's own, and some operations of a GPU, train otherwise a second time; another answer would have
        noise of its own, and the mean of many next to none.
        """
        question = torch.frombuffer(bytearray.fromhex(digest(message)), dtype=torch.uint8)
        before = usable(self.store, SENT, message.round, self.name) or {}
        if (asked := before.get(_QUESTION)) is not None and torch.equal(asked, question):
            return {name: tensor for name, tensor in before.items() if name != _QUESTION}
        self.store.put(SENT, message.round, leaving | {_QUESTION: question})
        kept = self.store.rounds(SENT)
        self.store.keep(SENT, [round_ for round_ in kept if round_ >= max(kept) - 1])  # earlier ones are asked no more
        return leaving

    def _validate(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        metrics = self.load(message, model, message.round)
        metrics |= self._validated(message, model, message.round)
        return {}, metrics

    def _test(self, message: Message, model: nn.Module) -> tuple[State, dict[str, Any]]:
        require_same_data(self.name, self.store, self._digest)
        selected = message.selected_round
        if self.selects:
            selected = self._selecting.so_far()[0] or message.round
        finishing = Finishing(self.name, self.store, self.rival, self._at_the_end)
        end = Ending(self.name, self.config, self.data, self.store, self.rival, self.delivery, finishing)
        return {}, end.answer(message, model, selected)

    def load(self, message: Message, model: nn.Module, personal_round: int) -> dict[str, Any]:
        """Makes the model what the site uses after it received its mix of ``personal_round``.

        Returns:
            ``restored_round`` if a personal state that is damaged, or gone since the server used that round's answer,
            was replaced by that of an earlier round (0: the first).
        """
        earlier, personal, damaged = self._personal(personal_round)
        gone = earlier < min(message.counted or 0, personal_round)
        self.split.load_shared(model, message.shared)
        self.split.load_personal(model, personal)
        return {"restored_round": earlier} if damaged or gone else {}

    def _personal(self, round_: int) -> tuple[int, State, bool]:
        """The last personal state that the site has, its round, and whether a later one is damaged."""
        earlier, state, damaged = self._kept(PERSONAL, round_)
        return earlier, self.initial_personal if state is None else state, damaged

    def _kept(self, kind: str, round_: int) -> tuple[int, State | None, bool]:
        """The last state of a kind up to a round, its round, and whether a later one is damaged; 0 and None for none.

        A site that missed rounds has none of them.
        """
        damaged = False
        for earlier in range(round_, 0, -1):
            try:
                if (state := self.store.get(kind, earlier)) is not None:
                    return earlier, state, damaged
            except TornFile as error:
                logger.warning("%s: %s; an earlier one is used", self.name, error)
                damaged = True
        return 0, None, damaged

    @cached_property
    def _selecting(self) -> Selecting:
        return Selecting(self.name, self.config, self.data, self.store)

    def _validated(self, message: Message, model: nn.Module, round_: int) -> dict[str, Any]:
        """Measures on validation data of what the site uses after a round; keeps it while it may still be selected.

        A site without validation data keeps it too: the other sites' may select the round. The model is afterwards what
        it was.
        """
        if round_ == 0:
            return {"validation": None}
        received = self._method(message, model, round_, ("update", message.round), round_).use(model)
        if self._may_use_another:
            self.store.put(RECEIVED, round_, copied(model) if received is None else received)
            self.store.keep(RECEIVED, (round_,))
        self.store.put(MODEL, round_, copied(model))
        by = self._selecting.measure if self.selects else self._selecting.asked(message)
        told = self.config.learned.validated(model, self.data, by)
        if received is not None:
            model.load_state_dict(received)
        self.store.keep(MODEL, (self._best(message, told, round_), round_))
        return told

    def _best(self, message: Message, told: Mapping[str, Any], round_: int) -> int:
        """The best round so far: the server's, or the site's own where it selects by itself."""
        return self._selecting.best(told, round_) if self.selects else message.best_round

    def received(self, round_: int, model: nn.Module) -> tuple[int, State] | None:
        """The first that is kept of the shared parts that the site was sent for a round or later ones, with its round.

        The last before if none of these is kept; None if nothing is. Where the site uses another model than came, that
        one is never looked at: how far something is from it may leave. A round that failed in training has what came
        for it in the place of what came before.
        """
        kind = RECEIVED if self._may_use_another else MODEL
        kept = self.store.rounds(kind)
        for number in [n for n in kept if n >= round_ - 1] or kept[-1:]:
            if (state := usable(self.store, kind, number, self.name)) is not None:
                model.load_state_dict(state)
                return number + 1, {name: tensor.cpu() for name, tensor in self.split.shared_state(model).items()}
        return None

    @property
    def _may_use_another(self) -> bool:
        """Whether the site may use another model than came, as the method has it."""
        return any(type(part).in_use is not Mechanism.in_use for part in self.config.parts)

    def first_step(self, start: State, model: nn.Module) -> float:
        """How far one round of training leads from the first model: Euclidean distance over all that is shared.

        It is trained once. Where noise is added it is of the contract alone: epsilon counts what leaves.
        """
        if noise := self.config.all_settings.get("update_noise"):
            numbers = sum(tensor.numel() for tensor in start.values())
            return self.config.all_settings["update_clip"] * sqrt(1 + noise**2 * numbers)
        if self._first_step is not None:
            return self._first_step
        self._require_outputs(model)
        self.split.load_shared(model, start)
        self.split.load_personal(model, self.initial_personal)
        order = self.chance.order(self.name, 0, "first step")
        trainer = self.config.trainer  # at the full rate, whatever the schedule has in this round
        loss = trainer.loss(self.config.learned.loss, self.data)
        train_plainly(model, self.data, trainer, self.config.local_epochs, order, loss)
        led = {name: tensor.cpu() for name, tensor in self.split.shared_state(model).items()}
        self._first_step = distance(start, led)
        return self._first_step
