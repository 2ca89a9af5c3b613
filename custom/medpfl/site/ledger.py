"""The site's ledger: a record of everything that left, each entry chained to the one before with the site's key.

One JSON object a line: when, which job, contract, task and round, on which data, names and bytes of what left, its
digest, and the seal over all that and the entry before. An entry that was changed, taken out or put between breaks the
chain. Beside the ledger lies its sealed head, so that entries cut off the end are noticed; who can set back both files
to an earlier day and has the key, or write access to both, cannot be noticed: keep a copy elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from medpfl.core.errors import UserError
from medpfl.core.lock import kernel_lock
from medpfl.core.messages import Update
from medpfl.core.statefile import fingerprint, serialised_bytes
from medpfl.core.whole_file import write_bytes
from medpfl.site.seal import Seal, SealBroken

FILE, HEAD = "ledger.jsonl", "ledger.head"
"""The entries; number and seal of the last."""
_BEGIN = "0" * 64
_NAMES = 1000
"""Of tensors that an entry lists; its digest is of all."""
_TAIL = 1 << 16
"""Bytes in which the last entry is looked for first."""
_RUN = ("data", "contract", "experiment", "run")
_Sort = tuple[str, str, str, int, str]
"""Of an entry: the data's name, whose case does not count, contract, experiment, run and task."""


@dataclass(frozen=True)
class Served:
    """What a data set has served so far.

    Attributes:
        experiments: runs that it was opened for, other than the one asked for.
        rounds: updates that left, or failed.
        known: whether the run asked for is among them already.
    """

    experiments: int
    rounds: int
    known: bool


@dataclass
class Ledger:
    """The ledger of one site.

    Attributes:
        folder: where it lies; the site's own.
        seal: of the site.
    """

    folder: Path
    seal: Seal
    _counts: Counter[_Sort] = field(default_factory=Counter, init=False, repr=False)
    _counted: tuple[int, ...] | None = field(default=None, init=False, repr=False)

    @property
    def file(self) -> Path:
        """The entries."""
        return self.folder / FILE

    def append(self, entry: dict[str, Any], update: Update) -> None:
        """Records an answer, before it leaves.

        Args:
            entry: ``job``, ``submitter``, ``contract``, ``experiment``, ``run``, ``data``, ``task``, ``round``; of a
                refusal why it was ``refused``.
            update: what is about to leave.

        Raises:
            OSError: it cannot be written; then nothing may leave.
            SealBroken: the last entry is not this site's.
        """
        with self._locked():
            self._append(entry, update)

    def open(self, entry: dict[str, Any], *, most: int) -> Served:
        """Records that data are to be opened for a run, unless that is known or they have served so many.

        Of runs that ask at once each counts for the next.

        Args:
            entry: as in :meth:`append`.
            most: experiments that the data may serve; 0 for any number.

        Returns:
            What was served before. The data may be opened if the run is known or there are fewer experiments than
            ``most``.

        Raises:
            OSError: it cannot be written; then nothing may be opened.
            SealBroken: the ledger is not as the site wrote it.
        """
        with self._locked():
            found = self.served(*(entry[name] for name in _RUN))
            if not found.known and (not most or found.experiments < most):
                self._append(entry, Update("", 0))
            return found

    def _append(self, entry: dict[str, Any], update: Update) -> None:
        count, last = self._head()
        known = self._counted is not None and self._counted == self._state_of_file()
        numbers = json.dumps(update.metrics, sort_keys=True)
        names = sorted(update.tensors)
        more = [f"and {len(names) - _NAMES} more"] if len(names) > _NAMES else []
        content = {
            "n": count + 1,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **entry,
            "tensors": names[:_NAMES] + more,
            "bytes": serialised_bytes(update.tensors),
            "numbers": sorted(update.metrics),
            "digest": hashlib.sha256(f"{fingerprint(update.tensors)} {numbers}".encode()).hexdigest(),
            "before": last,
        }
        line = json.dumps(content | {"seal": self.seal.tag(FILE, _text(content))})
        with open(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._write_head(count + 1, json.loads(line)["seal"])
        if known:
            self._counts[_sort(content)] += 1
            self._counted = self._state_of_file()

    def entries(self) -> Iterator[dict[str, Any]]:
        """All entries, verified one after the other.

        Raises:
            SealBroken: at the first entry that is not as this site wrote it; the message names its line.
        """
        lines, head = self._at_one_moment()
        before, last, number = "", _BEGIN, 0
        for number, line in enumerate(lines, 1):
            try:
                content = json.loads(line)
                tag = content.pop("seal")
                self.seal.require(FILE, _text(content), tag)
                if content["before"] != last or content["n"] != number:
                    raise SealBroken("an entry before it is missing or was moved")
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                what = error if isinstance(error, SealBroken) else "it is no entry"
                raise SealBroken(f"{self.file}, line {number}: {what}") from None
            before, last = last, tag
            yield content
        # A kill between an entry and its head leaves the head one behind.
        if head not in ((number, last), (number - 1, before)):
            raise SealBroken(f"{self.file}: it has {number} entries, and its head says otherwise: some were cut off")

    def served(self, data: str, contract: str, experiment: str, run: int, *, verify: bool = True) -> Served:
        """What a data set has served, and whether a run is among it.

        Args:
            data: its name; case does not tell data sets apart.
            contract, experiment, run: of the run.
            verify: check the chain too.

        Raises:
            SealBroken: the ledger is not as the site wrote it.
        """
        counts = Counter(map(_sort, self.entries())) if verify else self._unverified()
        found = {sort: n for sort, n in counts.items() if sort[0] == data.casefold()}
        runs, asked = {sort[1:4] for sort in found}, (contract, experiment, run)
        rounds = sum(n for sort, n in found.items() if sort[4] in ("train", "follow"))
        return Served(len(runs - {asked}), rounds, asked in runs)

    def _unverified(self) -> Mapping[_Sort, int]:
        """How many entries there are of each sort; the file is read where it is not as this process left it."""
        state = self._state_of_file()
        if state is None or state != self._counted:
            counts: Counter[_Sort] = Counter()
            for number, line in enumerate(self._lines(), 1):
                try:
                    counts[_sort(json.loads(line))] += 1
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise SealBroken(f"{self.file}, line {number}: it is no entry") from None
            self._counts, self._counted = counts, state  # of before: what came meanwhile is read the next time
        return self._counts

    def _state_of_file(self) -> tuple[int, ...] | None:
        """What changes with each change of the entries, whoever makes it; None if they are not there."""
        try:
            found = self.file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns  # unlike mtime, not for anybody to set

    def _at_one_moment(self) -> tuple[list[bytes], tuple[int, str]]:
        """The lines and the head that fits them: other jobs of the site write, and a reader need not be able to."""
        head = self._recorded_head()
        while True:
            lines, before, head = self._lines(), head, self._recorded_head()
            if head == before:
                return lines, head

    def _lines(self) -> list[bytes]:
        """The whole ones; one that a kill left unfinished had not left the site."""
        content = self.file.read_bytes() if self.file.exists() else b""
        return content[: content.rfind(b"\n") + 1].splitlines()

    def _head(self) -> tuple[int, str]:
        """Number and seal of the last entry, which the head names from then on.

        A line that a kill left unfinished had not left the site: it goes, once the rest is seen to be whole.
        """
        count, last = self._recorded_head()
        if not self.file.exists():
            if (count, last) != (0, _BEGIN):
                raise SealBroken(f"{self.file}: it is gone")
            return 0, _BEGIN
        size, length = self.file.stat().st_size, _TAIL
        with open(self.file, "rb+") as file:
            while True:
                file.seek(max(0, size - length))
                tail = file.read()
                whole = tail[: tail.rfind(b"\n") + 1]
                if whole.count(b"\n") > 1 or length >= size:
                    break
                length *= 2
            found = self._last_of(whole, count, last)
            if len(whole) < len(tail):
                file.truncate(size - (len(tail) - len(whole)))
        if found != (count, last):  # before another entry: a head that is two behind is one of a ledger cut off
            self._write_head(*found)
        return found

    def _last_of(self, lines: bytes, count: int, last: str) -> tuple[int, str]:
        """Of the last of some lines, which the head, given, is to name."""
        if not lines:
            if (count, last) != (0, _BEGIN):
                raise SealBroken(f"{self.file}: its entries are gone")
            return count, last
        try:
            entry = json.loads(lines.splitlines()[-1])
            found, before = (entry["n"], entry["seal"]), (entry["n"] - 1, entry["before"])
        except (ValueError, KeyError, TypeError):
            raise SealBroken(f"{self.file}: its last line is no entry") from None
        # A kill between the entry and its head, or a full disk, leaves the head one behind.
        if (count, last) not in (found, before):
            raise SealBroken(f"{self.file}: its last entry is not the one that its head names")
        return found

    def _recorded_head(self) -> tuple[int, str]:
        file = self.folder / HEAD
        if not file.exists():
            return 0, _BEGIN
        try:
            content = json.loads(file.read_bytes())
            self.seal.require(HEAD, _text({"n": content["n"], "last": content["last"]}), content["seal"])
        except (ValueError, KeyError, TypeError):
            raise SealBroken(f"{file} is not as this site wrote it") from None
        return content["n"], content["last"]

    def _write_head(self, number: int, last: str) -> None:
        content = {"n": number, "last": last}
        text = json.dumps(content | {"seal": self.seal.tag(HEAD, _text(content))})
        write_bytes(self.folder / HEAD, text.encode(), mode=0o600)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time: a site's jobs are processes of their own."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with kernel_lock(self.folder / "ledger.lock", mode=0o600):
            yield


def _sort(entry: Mapping[str, Any]) -> _Sort:
    return (entry["data"].casefold(), entry["contract"], entry["experiment"], entry["run"], entry["task"])


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)


def open_ledger(folder: Path, key: bytes | None) -> Ledger:
    """The ledger in a kit's state folder; UserError if the site has no key."""
    if key is None:
        raise UserError("this kit has no key and so no ledger: run `medpfl site init` on it")
    return Ledger(folder, Seal(key, "ledger"))
