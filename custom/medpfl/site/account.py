"""A run's account in its site's ledger: what was answered, and how many experiments and rounds its data have served.

How a job fails tells of the data too: that a file is not called so, that a class has not so many patients. So a run
counts from when a site opens its data for it, whatever comes of that; else job after job that is refused could ask as
much as it likes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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

    def admit(self, run: int, message: Message) -> None:
        """A run begins, or goes on, within the policy's limits.

        Raises:
            StateError: the data have served as many experiments or rounds as they may, or the ledger is not at hand.
        """
        if message.task in ("prepare", "statistics", "join"):
            self.open(run)
        elif message.task in ("train", "follow") and (self.policy.experiments or self.policy.rounds):
            served = self._served(run, self.contract.data)
            self._require_experiment(served)
            if self.policy.rounds and served.rounds >= self.policy.rounds:
                raise StateError(words.ROUNDS(self.policy.rounds))

    def enter(self, run: int, task: str, update: Update) -> None:
        """Records an answer, before it leaves; StateError if that cannot be."""
        self._append(run, task, update)

    def open(self, run: int) -> None:
        """Counts a run, before its data are opened.

        Raises:
            StateError: the data have served as many experiments as they may, or the ledger is not at hand.
        """
        for asked in (self._served, self._opened):  # of all first: none is used up where another has no room
            for data in self.contract.opens:
                self._require_experiment(asked(run, data))

    def refuse(self, run: int, message: Message, error: Exception) -> None:
        """Records that a question has no answer, before it is told; StateError if that cannot be."""
        if not isinstance(error, StateNotKept):  # a site that cannot write refuses all
            why = str(error) if isinstance(error, StateError) else type(error).__name__
            self._append(run, message.task, Update("", message.round), refused=why[:_WORDS])

    def _served(self, run: int, data: str) -> Served:
        with at_hand("read"):
            return self.ledger.served(data, self.contract.hash, self.experiment, run, verify=False)

    def _opened(self, run: int, data: str) -> Served:
        with at_hand("written"):
            return self.ledger.open(self._entry(run, OPEN, 0, data), most=self.policy.experiments)

    def _require_experiment(self, served: Served) -> None:
        most = self.policy.experiments
        if most and not served.known and served.experiments >= most:
            raise StateError(words.EXPERIMENTS(most))

    def _append(self, run: int, task: str, update: Update, **more: str) -> None:
        with at_hand("written"):
            self.ledger.append(self._entry(run, task, update.round, self.contract.data) | more, update)

    def _entry(self, run: int, task: str, round_: int, data: str) -> dict[str, Any]:
        return {
            "job": self.job,
            "submitter": self.contract.submitter,
            "contract": self.contract.hash,
            "experiment": self.experiment,
            "run": run,
            "data": data,
            "task": task,
            "round": round_,
        }


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
