"""Where a site keeps its record of one experiment: which questions it has answered under which contract."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from medpfl.core.lock import kernel_lock
from medpfl.core.parameters import StateError
from medpfl.core.whole_file import write_bytes
from medpfl.site import words
from medpfl.site.contract import Contract, Record
from medpfl.site.seal import Seal

logger = logging.getLogger(__name__)

FILE, LOCK = "contract.json", "contract.lock"


@dataclass
class Book:
    """Keeps a site's record of one experiment, in its folder or, without one, in memory.

    Attributes:
        folder: the site's own; None for memory.
        seal: of the site; a record without it is refused.
    """

    folder: Path | None = None
    seal: Seal | None = None
    _record: Record | None = field(default=None, init=False)

    @contextmanager
    def open(self, contract: Contract) -> Iterator[Record]:
        """The record as it is now, which nobody else reads or writes meanwhile: jobs are processes of their own.

        Raises:
            StateError: as :meth:`read`, or the folder cannot be written to.
        """
        if self.folder is None:
            yield self.read(contract)
            return
        try:
            held = kernel_lock(self.folder / LOCK, mode=0o600).acquire()
        except OSError as error:
            raise self._not_written(error) from error
        with held:
            self._record = None
            yield self.read(contract)

    def read(self, contract: Contract) -> Record:
        """The record under a contract; a new one where there is none.

        Raises:
            StateError: the folder is another submitter's or contract's, or the record is damaged.
        """
        if self._record is None:
            self._record = self._kept() or Record(contract.hash, contract.submitter, joined=contract.joined)
        if self._record.submitter != contract.submitter:
            raise StateError(words.OTHER_SUBMITTER())
        if self._record.contract != contract.hash and contract.joined and self._record.joined == contract.joined:
            # Its model is archived, and nobody trains on it.
            self._record = self._record.anew(contract)
        if self._record.contract != contract.hash:
            raise StateError(words.OTHER_CONTRACT(self._record.contract[:12]))
        return self._record

    def write(self, record: Record) -> None:
        """Keeps a record; StateError if it cannot be written."""
        self._record = record
        if self.folder is None:
            return
        text = json.dumps(record.to_json(), sort_keys=True)
        content = {"record": record.to_json()} | ({"seal": self.seal.tag(FILE, text)} if self.seal else {})
        try:
            write_bytes(self.folder / FILE, json.dumps(content).encode(), durable=self.seal is not None, mode=0o600)
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> StateError:
        """The folder is the site's own business: its log alone has it."""
        logger.warning("%s cannot be written: %s", self.folder / FILE, error)
        return StateError(words.NO_STATE("write", error.strerror))

    def _kept(self) -> Record | None:
        if self.folder is None or not (file := self.folder / FILE).exists():
            return None
        try:
            content = json.loads(file.read_bytes())
            record = Record.from_json(content["record"])
            if self.seal:
                self.seal.require(FILE, json.dumps(content["record"], sort_keys=True), content.get("seal"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s: %s", file, error)
            raise StateError(words.RECORD_DAMAGED()) from None
        return record
