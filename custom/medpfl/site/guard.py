"""A site that keeps the run's contract: what comes is checked before it is answered, what leaves before it goes.

Wraps whoever answers at a site (:class:`~medpfl.site.worker.Site`, :class:`~medpfl.site.newcomer.Newcomer`); both
engines speak to the wrapped one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from medpfl.core.channels import Channel
from medpfl.core.messages import Message, Update, in_channel, named
from medpfl.core.parameters import State, StateError, distance
from medpfl.core.site_data import SiteData
from medpfl.core.statefile import fingerprint
from medpfl.site import words
from medpfl.site.account import Account, at_hand
from medpfl.site.answer import Party
from medpfl.site.arriving import Arriving
from medpfl.site.book import Book
from medpfl.site.coarse import of_enough
from medpfl.site.contract import Contract, Record, admitted
from medpfl.site.gate import Gate
from medpfl.site.many_patients import patients, require_many, require_usual, require_words, taught
from medpfl.site.policy import SitePolicy
from medpfl.site.training_sets import TrainingSets

logger = logging.getLogger(__name__)

_GROWTH = 5.0
"""How much longer than its longest update so far a site's next one counts at most."""


@dataclass
class Guarded:
    """A site behind its contract, its policy, its gate and its ledger.

    Attributes:
        party: who does the work.
        contract: what was agreed.
        policy: the site's.
        gate: what may leave.
        arriving: checks the weights that come.
        channels: of the run.
        book: keeps what was answered.
        public: the data are a public set that every party has, so that nothing is learned from statistics under any f.
        account: what the data have served, and what leaves, in the site's ledger; None in a simulation.
        sets: which patients earlier runs trained on; None in a simulation.
    """

    party: Party
    contract: Contract
    policy: SitePolicy
    gate: Gate
    arriving: Arriving
    channels: Iterable[Channel] = ()
    book: Book = field(default_factory=Book)
    public: bool = False
    account: Account | None = None
    sets: TrainingSets | None = None
    _begun: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The site's."""
        return self.party.name

    @property
    def data(self) -> SiteData:
        """The site's."""
        return self.party.data

    def handle(self, message: Message, model: nn.Module) -> Update:
        """Does what a message asks, if the contract has it and the policy allows it.

        Raises:
            StateError: it may not be asked now, or its answer may not leave; nothing has left then.
        """
        with self.book.open(self.contract) as before:
            record = admitted(before, self.contract, message, self.policy.repeats, list(self.channels))
            self._require_asked(message)
            require_words(self.policy, self.contract)
            self._require_unsteered()
            self._require_patients(message, model)
            self._require_consent_to_weights(message)
            self._require_pretrained(message)
            self._require_channels(message)
            self.arriving.require_own_rows(message.shared)
            for channel in (c for c in self.channels if c.weights):
                self.arriving.require_own_rows(message.brought(channel.name))
                self._require_beginning(channel)
            # What is refused takes its place, and has used up nothing that is given once.
            taken = _Taken(
                lambda: self._admit(record, message),
                self.book.write,
                lambda: admitted(before, self.contract, message, self.policy.repeats),
            )
            with self._recorded_if_refused(record, message, taken):
                if message.task in ("train", "follow", "validate") and self.gate.shared:
                    self.arriving.require_place(record, message, model, taken)
                there = self.arriving.require_steps(record, message, model, self.channels, self.data, taken)
            taken.answered(record)  # last: it takes one of the data's experiments
        with self._recorded_if_refused(record, message, taken):
            found = self.party.handle(message, model)
            update = self.gate.passed(message.task, replace(found, metrics=self._of_enough(found)))
            first = message.task == "train" and not record.trained
            if (first or (message.task != "train" and update.tensors)) and self._tells_of_patients(message):
                self._require_other_patients(keep=True)  # again: another run may have been answered meanwhile
            if message.task in ("prepare", "statistics") and not record.greeted:
                with self._still(record) as now:
                    self.book.write(replace(now, greeted=True))
            if message.task == "train" and self.gate.shared:
                length = distance(there, update.tensors)
                with self._still(record) as now:
                    # What came must not make the next limit as wide as it likes.
                    longest = max(now.step, min(length, _GROWTH * now.step)) if now.step else length
                    self.book.write(replace(now, trained=message.round, step=longest))
        if self.account:
            self.account.enter(record.run, message.task, update)
        return update

    def _admit(self, record: Record, message: Message) -> None:
        if self.account:
            self.account.admit(record.run, message)

    @contextmanager
    def _recorded_if_refused(self, record: Record, message: Message, taken: _Taken) -> Iterator[None]:
        """What a site cannot do with a question that took its place may rest on its data; a failed round is one."""
        try:
            yield
        except Exception as error:
            if self.account and taken.done:
                self.account.refuse(record.run, message, error)
            raise

    @contextmanager
    def _still(self, record: Record) -> Iterator[Record]:
        """The record as it is now, of the same run: a slow answer writes nothing into the next one's."""
        with self.book.open(self.contract) as now:
            if (now.contract, now.run) != (record.contract, record.run):
                raise StateError(words.OTHER_RUN())
            yield now

    def _of_enough(self, update: Update) -> dict[str, Any]:
        config = self.contract.config
        judges, trained = patients(self.party.data, "validation"), taught(config, self.party.data)
        chooses, loss = config.resolved_use != "received", config.learned.loss_rests_on_cases
        return of_enough(update.metrics, self.policy, judges, trained=trained, chooses=chooses, loss=loss)

    def _require_asked(self, message: Message) -> None:
        """What is asked for besides the model is the method's own, and a task for it alone asks for some."""
        known = [c.name for c in self.channels if c.to_server and message.task in c.tasks]
        nothing = message.task == "statistics" and not message.asked
        if nothing or any(name not in known for name in message.asked):
            raise StateError(words.NOT_NEEDED(self.contract.config.resolved_mixing))

    def _require_unsteered(self) -> None:
        """A server that leads training where it likes reads images from where it ends."""
        if not self.policy.lets_steer and (name := next((c.name for c in self.channels if c.steers), None)):
            raise StateError(words.STEERS(name))

    def _require_patients(self, message: Message, model: nn.Module) -> None:
        """Few patients' averages say much about each; a site that shares nothing but numbers may have any number."""
        if not self._tells_of_patients(message):
            return
        require_many(self.policy, self.contract, self.party.data, look=message.task != "train")
        require_usual(self.policy, model)
        if message.task != "train":
            self._require_other_patients()

    def _tells_of_patients(self, message: Message) -> bool:
        """Whether the answer, or what its run sends later, is computed from training cases."""
        if message.task == "prepare" and (self.gate.shared or self.gate.channels):
            return True
        updates = message.task == "train" and bool(self.gate.shared)
        return updates or message.task == "statistics" or bool(message.asked)

    def _require_other_patients(self, *, keep: bool = False) -> None:
        """Of those of an earlier run all, or others by whom updates of all runs together are of no few patients."""
        least = self.policy.least_patients
        if self.sets is None or self.public or least < 2:
            return
        if self.contract.leaves_samples_out:
            raise StateError(words.IMAGES_LEFT_OUT())
        with at_hand("written" if keep else "read"):
            wrong = self.sets.tell_of_few(self.contract.data, least, keep=keep, how=self.contract.data_args)
        if wrong:
            raise StateError(words.POLICY + wrong)

    def _require_consent_to_weights(self, message: Message) -> None:
        """Whoever makes weights can make them show single patients; start weights also where numbers alone leave."""
        contract = self.contract
        exempt = self.public or not (contract.brings_start or self._tells_of_patients(message))
        if not (exempt or self.policy.lets_bring(contract.config, contract.hash)):
            raise StateError(words.BRINGS_WEIGHTS())

    def _require_pretrained(self, message: Message) -> None:
        config = self.contract.config
        if message.task not in ("prepare", "statistics") or not message.shared:
            return
        named = config.mixer.under_model and config.pretrained
        if named and f"sha256:{fingerprint(message.shared)}" != named:
            raise StateError(words.OTHER_PRETRAINED())
        if not self.policy.lets_pretrain(config, public=self.public):
            raise StateError(words.UNNAMED_PRETRAINED())

    def _require_beginning(self, channel: Channel) -> None:
        """A process keeps what its first message brought, also where that message is refused: the next brings none."""
        if self._begun or not self.arriving.begins:
            return
        self._require_as_had(channel, named(channel.name, self.arriving.begins))
        self.arriving.require_own_rows(self.arriving.begins)
        self._begun = True

    def _require_channels(self, message: Message) -> None:
        """What comes besides the model is what the method has, when it has it, and as it has it."""
        extra = {name for name in message.tensors if "/" in name}
        for channel in (c for c in self.channels if not c.to_server):
            sent = in_channel(channel.name, message.tensors)
            extra -= sent.keys()
            early = message.task == "train" and message.round < channel.from_round
            if not sent:
                continue
            if message.task not in channel.tasks or early:
                raise StateError(words.NOT_AS_HAD(channel.name))
            self._require_as_had(channel, sent)
        if extra:
            raise StateError(words.NOT_HAD())

    def _require_as_had(self, channel: Channel, sent: State) -> None:
        try:
            channel.check(sent)
        except StateError as error:
            logger.warning("%s: %s", self.name, error)
            raise StateError(words.NOT_AS_HAD(channel.name)) from None


@dataclass
class _Taken:
    """Lets a question take its place in the run, once: it counts, whatever comes of it.

    Attributes:
        admit: counts it.
        write: keeps a record.
        refused: gives the record where it is not answered.
        done: it has its place.
    """

    admit: Callable[[], None]
    write: Callable[[Record], None]
    refused: Callable[[], Record]
    done: bool = False

    def __call__(self) -> None:
        """Before something is asked of the site's data, or told of them, while it may still be refused."""
        if not self.done:
            self.answered(self.refused())

    def answered(self, record: Record) -> None:
        """With the record of a question that is not refused."""
        if not self.done:
            self.admit()
        self.write(record)
        self.done = True
