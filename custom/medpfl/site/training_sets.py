"""Which patients the runs of a data set trained on: two updates whose patients differ by few tell of these few.

An update is a mean over training cases. Of two runs that a coordinator chose alike but for the division of the data,
the difference of both sums is that of the patients who are in one of them alone (a differencing attack; Dwork,
McSherry, Nissim, Smith: Calibrating noise to sensitivity, TCC 2006). So runs train on the same patients, or on such as
differ by as many as must stand behind an update anyway.

What is kept are keyed hashes of the patients' names, sealed; nobody without the site's key can test a name against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from medpfl.core.lock import kernel_lock
from medpfl.core.statefile import write_bytes
from medpfl.site.seal import Seal, SealBroken

FILE, LOCK = "training-sets.json", "training-sets.lock"
_DIGITS = 16
"""Hexadecimal ones that are kept of a patient's hash."""


@dataclass(frozen=True)
class TrainingSets:
    """Those of one site.

    Attributes:
        folder: where the record lies; the site's own.
        seal: of the site.
        whose: who is trained on in this run; None where nobody but the user's own code knows.
    """

    folder: Path
    seal: Seal
    whose: Callable[[], Collection[str] | None]

    def differs_by_few(self, data: str, least: int, *, keep: bool) -> int:
        """By how many patients this run's training set differs from an earlier one's, if by fewer than ``least``.

        Args:
            data: the data set's name; case does not tell data sets apart.
            least: patients.
            keep: whether later runs are held to this one: a run that is refused binds nobody.

        Returns:
            0 if it is an earlier set, or differs from all by ``least`` or more.

        Raises:
            OSError: the record cannot be read or written.
            SealBroken: it is not as the site wrote it.
        """
        if (patients := self.whose()) is None:
            return 0
        chosen, name = {self.seal.tag(FILE, patient)[:_DIGITS] for patient in patients}, data.casefold()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with kernel_lock(self.folder / LOCK, mode=0o600):
            known = self._read()
            apart = [len(chosen ^ set(earlier)) for earlier in known.get(name, ())]
            if few := [number for number in apart if 0 < number < least]:
                return min(few)
            if keep and 0 not in apart:
                self._write(known | {name: [*known.get(name, ()), sorted(chosen)]})
        return 0

    def sizes(self) -> dict[str, list[int]]:
        """By data set how many patients each set has that later runs are held to.

        Raises:
            SealBroken: the record is not as the site wrote it.
        """
        return {data: [len(patients) for patients in sets] for data, sets in self._read().items()}

    def forget(self, data: str) -> int:
        """Holds later runs on a data set to none of the earlier ones': the site's own decision.

        Returns:
            How many sets they were held to.

        Raises:
            OSError: the record cannot be written.
            SealBroken: it is not as the site wrote it.
        """
        if not self.folder.exists():
            return 0
        with kernel_lock(self.folder / LOCK, mode=0o600):
            known = self._read()
            if forgotten := known.pop(data.casefold(), []):
                self._write(known)
        return len(forgotten)

    def _read(self) -> dict[str, list[list[str]]]:
        file = self.folder / FILE
        if not file.exists():
            return {}
        try:
            content = json.loads(file.read_bytes())
            self.seal.require(FILE, _text(content["sets"]), content["seal"])
        except (ValueError, KeyError, TypeError):
            raise SealBroken(f"{file} is not as this site wrote it") from None
        return content["sets"]

    def _write(self, sets: dict[str, list[list[str]]]) -> None:
        content = {"sets": sets, "seal": self.seal.tag(FILE, _text(sets))}
        write_bytes(self.folder / FILE, json.dumps(content).encode(), mode=0o600)


def open_training_sets(
    folder: Path, key: bytes, whose: Callable[[], Collection[str] | None] = lambda: None
) -> TrainingSets:
    """Those in a kit's state folder, by the site's key; see :class:`TrainingSets`."""
    return TrainingSets(folder, Seal(key, "training sets"), whose)


def _text(sets: dict[str, list[list[str]]]) -> str:
    return "sets " + json.dumps(sets, sort_keys=True)
