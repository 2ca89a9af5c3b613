"""A run's account in its site's ledger: what was answered, and how many experiments and rounds its data have served.

How a job fails tells of the data too: that a file is not called so, that a class has not so many patients. So a run
counts from when a site opens its data for it, whatever comes of that; else job after job that is refused could ask as
much as it likes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from medpfl.core.messages import Message, Update
from medpfl.core.parameters import StateError
from medpfl.site import words
from medpfl.site.contract import Contract
from medpfl.site.ledger import Ledger, Served
from medpfl.site.policy import SitePolicy
from medpfl.site.seal import SealBroken
from medpfl.site.store import StateNotKept

logger = logging.getLogger(__name__)

OPEN = "open"
"""The task of the entry by which a run counts."""
_WORDS = 300
"""Characters of a reason that are kept: a server's words may be in it."""


@dataclass
class Account:
    """One run's.

    Attributes:
        ledger: the site's.
        policy: the site's.
        contract: of the run.
        experiment: the name under which the site keeps it.
        job: FLARE's number of the job.
    """

    ledger: Ledger
    policy: SitePolicy
    contract: Contract
    experiment: str
    job: str
    _served: Served | None = field(default=None, init=False)

    def begin(self, run: int, message: Message) -> bool:
        """Lets a run begin, or go on, within the policy's limits.

        Returns:
            Whether this message let it begin, which :meth:`withdraw` takes back where nothing leaves.

        Raises:
            StateError: the data have served as many experiments or rounds as they may, or the ledger is not at hand.
        """
        begun = False
        if message.task in ("prepare", "statistics", "join"):
            with at_hand("read"):
                self._served = self.ledger.begin(*self._run(run), most=self.policy.experiments)
            begun = self._served.begun
        elif message.task == "train" and (self.policy.experiments or self.policy.rounds):
            with at_hand("read"):
                self._served = self.ledger.served(*self._run(run), verify=False)
        if self._served is not None:
            self._require_room(self._served)
            if self.policy.rounds and message.task == "train" and self._served.rounds >= self.policy.rounds:
                raise StateError(words.ROUNDS(self.policy.rounds))
        return begun

    def withdraw(self, run: int) -> None:
        """Takes back that a run was let begin, of which nothing left."""
        with at_hand("written"):
            self.ledger.withdraw(*self._run(run))

    def enter(self, run: int, task: str, update: Update) -> None:
        """Records an answer, before it leaves; StateError if that cannot be."""
        self._append(run, task, update)

    def open(self, run: int) -> None:
        """Counts a run, before its data are opened.

        Raises:
            StateError: the data have served as many experiments as they may, or the ledger is not at hand.
        """
        for data in self.contract.opens:
            with at_hand("written"):
                served = self.ledger.begin(*self._run(run, data), most=self.policy.experiments)
            self._require_room(served)
            if not served.known:
                self._append(run, OPEN, Update("", 0), data)

    def refuse(self, run: int, message: Message, error: Exception) -> None:
        """Records that a question has no answer, before it is told; StateError if that cannot be."""
        if not isinstance(error, StateNotKept):  # a site that cannot write refuses all
            why = str(error) if isinstance(error, StateError) else type(error).__name__
            self._append(run, message.task, Update("", message.round), refused=why[:_WORDS])

    def _require_room(self, served: Served) -> None:
        most = self.policy.experiments
        if most and not served.known and served.experiments >= most:
            raise StateError(words.EXPERIMENTS(most))

    def _run(self, run: int, data: str = "") -> tuple[str, str, str, int]:
        return data or self.contract.data, self.contract.hash, self.experiment, run

    def _append(self, run: int, task: str, update: Update, data: str = "", **more: str) -> None:
        data, contract, experiment, _ = self._run(run, data)
        entry = {
            "job": self.job,
            "submitter": self.contract.submitter,
            "contract": contract,
            "experiment": experiment,
            "run": run,
            "data": data,
            "task": task,
            "round": update.round,
        }
        with at_hand("written"):
            self.ledger.append(entry | more, update)


@contextmanager
def at_hand(what: str) -> Iterator[None]:
    """Inside, the ledger is ``read`` or ``written``; StateError if that cannot be, for then nothing leaves."""
    try:
        yield
    except SealBroken as error:
        logger.warning("%s", error)
        raise StateError(words.LEDGER("is not as the site wrote it")) from None
    except OSError as error:
        logger.warning("%s", error)
        raise StateError(words.LEDGER(f"cannot be {what}")) from None
