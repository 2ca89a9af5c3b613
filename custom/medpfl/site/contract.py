"""The run's contract at a site: what was agreed, which questions were answered, and which question may come next.

The hash of a run's configuration is its contract. A site that holds it answers each task once, in order, up to the
agreed number of rounds, and nothing after the end. The same question may be asked again (a server that was restarted
does), and gets the same answer; another question in a place that was answered is counted, and refused when the policy's
number is used up. Pure functions on an explicit record; :mod:`medpfl.site.book` keeps it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from medpfl.config.fields import CIRCUMSTANCES
from medpfl.config.run import RunConfig
from medpfl.core.channels import Channel
from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.core.statefile import fingerprint
from medpfl.site import words
from medpfl.training.settings import Training

_MAY_DIFFER = {*CIRCUMSTANCES, "intra_op_threads"}
"""Fields of a configuration that are no part of the agreement: they do not touch what leaves."""


@dataclass(frozen=True)
class Contract:
    """What a job and a site agree on.

    Attributes:
        config: of the run.
        newcomers: of a job by which sites join the finished run: says what data they have; None of the run itself.
        submitter: who submitted the job, as FLARE authenticated it; empty in a simulation.
    """

    config: RunConfig
    newcomers: RunConfig | None = None
    submitter: str = ""

    @property
    def joining(self) -> bool:
        """Whether sites join a finished run by it."""
        return self.newcomers is not None

    @property
    def brings_start(self) -> bool:
        """Whether training begins with weights of the job's."""
        return bool(self.config.init) and not self.joining

    @property
    def joined(self) -> str:
        """Hash of the finished run that sites join by it, without how they train; empty for the run itself."""
        if not self.joining:
            return ""
        return _hash(_agreed(without_training(self.config)))

    @property
    def data(self) -> str:
        """What the data are called that a site brings."""
        return self._of_data.data

    @property
    def halves(self) -> tuple[Contract, ...]:
        """By whom something is said of data: by who joins, and by the run."""
        return (self, Contract(self.config)) if self.joining else (self,)

    @property
    def opens(self) -> tuple[str, ...]:
        """The names of data that a site looks for: those of who joins, and of the run, whose network fits its data."""
        return tuple(dict.fromkeys((self.data, self.config.data)))

    @property
    def data_args(self) -> Mapping[str, Any]:
        """How they are read."""
        return self._of_data.data_args

    @property
    def leaves_samples_out(self) -> bool:
        """Whether a patient may be trained on with some samples only, so that patients alone do not tell on what."""
        return bool(self._of_data.holdout or self.says_counts)

    @property
    def says_counts(self) -> bool:
        """Whether the job says of how many samples of each class a site trains."""
        return bool(self.data_args.get("train_counts"))

    @property
    def patient_pattern(self) -> object:
        """By what the job says whose an image is; None if it does not."""
        return self.data_args.get("patient")

    @property
    def divides_folders(self) -> bool:
        """Whether the job says which of a site's own folders are sites, or leaves some out."""
        return self.data_args.get("folders") == "sites" or bool(self._of_data.held_out)

    @property
    def _of_data(self) -> RunConfig:
        return self.newcomers or self.config

    @property
    def hash(self) -> str:
        """64 hexadecimal digits; the same for every job of this run, whoever submits it."""
        theirs = None if self.newcomers is None else _agreed(self.newcomers)
        return _hash({"run": _agreed(self.config), "newcomers": theirs})


def without_training(config: RunConfig) -> RunConfig:
    """A run without the settings of training, which a site that joins it has of its own."""
    settings = {name: value for name, value in config.settings.items() if name not in Training.model_fields}
    return config.model_copy(update={"settings": settings})


def _hash(agreed: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(agreed, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _agreed(config: RunConfig) -> dict[str, Any]:
    fields = config.model_dump(mode="json", exclude=_MAY_DIFFER)
    # How long a server waits is its own business, but not that the others receive one site's update as it is.
    through = {"lets_one_through": True} if config.turnout.lets_one_through else {}
    return fields | through | {"settings": config.settings_of_sites()}


_AGAIN = 100
"""How often beside the rounds: a server asks again where it is started anew, and the ledger keeps each answer."""
_LONGEST = 10_000
"""As many rounds at most count so: a job may name a million, and each answer is in the ledger."""


@dataclass(frozen=True)
class Record:
    """What a site has answered under a contract.

    Attributes:
        contract: its hash.
        submitter: whose it is.
        run: counts the runs under it, from 1: an experiment that has ended may be run again.
        answered: digest of the question by its place (:func:`place`).
        repeats: how often another question came in a place that was answered.
        again: how often a question was asked as before, other than for a round of training, which counts as one.
        once: by channel of which each site sends once, how often that was.
        trained: the round of the last update that left.
        joined: :attr:`Contract.joined`.
        step: length of the longest update so far: Euclidean distance over all that is shared.
        greeted: the hello was not only admitted but done: what lay here of an earlier run is put aside.
    """

    contract: str
    submitter: str = ""
    run: int = 1
    answered: Mapping[int, str] = field(default_factory=dict)
    repeats: int = 0
    again: int = 0
    once: Mapping[str, int] = field(default_factory=dict)
    trained: int = 0
    joined: str = ""
    step: float = 0.0
    greeted: bool = False

    def anew(self, contract: Contract) -> Record:
        """Of another run under a contract. Who joins again says no more by it: its hello counts as answered."""
        more: dict[str, Any] = {}
        if contract.joining:
            answered = {0: self.answered[0]} if 0 in self.answered else {}
            more = {"answered": answered, "once": self.once, "greeted": self.greeted}
        return Record(contract.hash, self.submitter, self.run + 1, joined=self.joined, **more)

    @property
    def last(self) -> int:
        """The last place that was answered; -1 before the hello."""
        return max(self.answered, default=-1)

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {**vars(self), "answered": {str(k): v for k, v in self.answered.items()}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        """From :meth:`to_json`'s; one of an earlier version does not tell whether the site was greeted."""
        return cls(**{"greeted": True, **content, "answered": {int(k): v for k, v in content["answered"].items()}})


def digest(message: Message) -> str:
    """Of all that a message asks and brings."""
    info = json.dumps(message.info, sort_keys=True, default=str)
    text = f"{message.task} {message.round} {info} {fingerprint(message.tensors) if message.tensors else ''}"
    return hashlib.sha256(text.encode()).hexdigest()


def place(config: RunConfig, message: Message) -> int:
    """Where a task belongs in the order of a run: the hello, rounds 1 to R, validation, test; or statistics, joining.

    Raises:
        StateError: there is no such round.
    """
    rounds = config.rounds
    match message.task:
        case "prepare" if message.round == 0:
            return 0
        case "statistics":
            return 0
        case "join":
            return 1
        case "train" if 1 <= message.round <= rounds:
            return message.round
        case "follow" if not config.turnout.draws:
            raise StateError(words.NONE_FOLLOWS())
        case "follow" if 1 <= message.round <= rounds:
            return message.round
        case "validate" if message.round == rounds:
            return rounds + 1
        case "test" if message.round == rounds:
            return rounds + 2
    raise StateError(words.NO_ROUND(message.round, rounds))


def admitted(
    record: Record, contract: Contract, message: Message, repeats: int, channels: Sequence[Channel] = ()
) -> Record:
    """The record with a question that may be answered now.

    Args:
        record: so far.
        contract: what was agreed.
        message: the question.
        repeats: how many questions of a run may take the place of one that was answered.
        channels: of the run.

    Raises:
        StateError: it may not be answered; why, in words that may leave.
    """
    where, asked = place(contract.config, message), digest(message)
    # Nobody trains on who joins, so no server needs to ask another way; and epsilon counts each round's noise once.
    noised = message.task == "train" and contract.config.all_settings.get("update_noise")
    repeats = 0 if contract.joining or noised else repeats
    asked_first = any(channel.to_server and "statistics" in channel.tasks for channel in channels)
    first = 0 if message.task != "join" or asked_first else 1
    if where > first and (record.last < first or (first == 0 and not record.greeted)):
        raise StateError(words.BEFORE_HELLO(message.task))
    # Whoever begins anew begins with the hello: what was answered is another run's then.
    if where == 0 and record.last > 0:
        record = record.anew(contract)
    record = _with_once(record, channels, message, asked, where, repeats)
    if where > record.last:
        return replace(record, answered={**record.answered, where: asked})
    # A server whose last checkpoint is damaged is one step behind, and no more.
    if where < record.last - 1:
        raise StateError(words.OUT_OF_ORDER(message.task, message.round, min(record.last, contract.config.rounds)))
    if record.answered.get(where) == asked:
        if message.task == "train":
            return record
        most = min(contract.config.rounds, _LONGEST) + _AGAIN  # a hello comes each round until it is answered
        if record.again >= most:
            raise StateError(words.ASKED_AGAIN(message.task, message.round, most))
        return replace(record, again=record.again + 1)
    if where in record.answered and record.repeats >= repeats:
        raise StateError(words.REPEATED(message.task, message.round, repeats))
    again = record.repeats + (where in record.answered)
    return replace(record, answered={**record.answered, where: asked}, repeats=again)


def _with_once(
    record: Record, channels: Iterable[Channel], message: Message, asked: str, where: int, repeats: int
) -> Record:
    """Counts what a site sends once: once, or again where the server lost it, which uses up repeats."""
    if record.answered.get(where) == asked:
        return record
    for channel in (c for c in channels if c.to_server and c.name in message.asked):
        if message.task == "train" and message.round < channel.from_round:
            raise StateError(words.NOT_DUE(channel.name, channel.from_round))
        if not channel.once:
            continue
        given = record.once.get(channel.name, 0)
        record = replace(record, once={**record.once, channel.name: given + 1})
        if not given or where in record.answered:  # there the place counts
            continue
        if record.repeats >= repeats:
            raise StateError(words.GIVEN_ALREADY(channel.name))
        record = replace(record, repeats=record.repeats + 1)
    return record
