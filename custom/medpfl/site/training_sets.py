"""Which patients the runs of a data set trained on: updates of sets that differ by few, or of many sets, tell of few.

An update is a mean over training cases. Of two runs that a coordinator chose alike but for the division of the data,
the difference of both sums is that of the patients who are in one of them alone (a differencing attack; Dwork,
McSherry, Nissim, Smith: Calibrating noise to sensitivity, TCC 2006). So runs train on the same patients, or on such as
differ by as many as must stand behind an update anyway. And of as many different sets as there are patients each one's
part follows by solving for it (Dinur, Nissim: Revealing information while preserving privacy, PODS 2003): of the
patients of all sets together there are as many as must stand behind an update for each set, of more sets than two.
Two runs may also read the same patients' images otherwise, few of them alone; so what is read is compared too, whatever
the data are called, and of readings that differ for some patients alone there are as many at most.

What is kept are keyed hashes of the patients' names and images, sealed; nobody without the site's key can test a name
or an image against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medpfl.core.lock import kernel_lock
from medpfl.core.reasons import Reason
from medpfl.core.whole_file import write_bytes
from medpfl.site.seal import Seal, SealBroken

OTHER_PATIENTS = Reason(
    "the training patients are an earlier run's but for few, so that both updates would tell of these; the same ones, "
    "or {number} others (least_patients)"
)
OTHER_IMAGES = Reason(
    "an earlier run trained on the same images and labels but for few patients', so that both updates would tell of "
    "these; the same ones, or of {number} patients others (least_patients)"
)
MANY_SETS = Reason(
    "the data have served {number} different sets of training patients, and of one more, updates together would tell "
    "of few; the same ones as an earlier run's (least_patients)"
)

MANY_READINGS = Reason(
    "the images have been read in {number} ways that differ for some patients alone, and of one more, updates together "
    "would tell of few; read as in an earlier run (least_patients)"
)

FILE, LOCK = "training-sets.json", "training-sets.lock"
_DIGITS = 16
"""Hexadecimal ones that are kept of a patient's hash."""
_SETS = 2
"""That may be different of however few patients: of two the difference says all."""


_Set = dict[str, Any]
"""``patients`` and ``images``, the latter by what is trained on of each: hashes; and ``read``, a hash of how."""


@dataclass(frozen=True)
class TrainingSets:
    """Those of one site.

    Attributes:
        folder: where the record lies; the site's own.
        seal: of the site.
        whose: who is trained on in this run; None where nobody but the user's own code knows.
        contents: digests of what is trained on of each patient; None likewise.
    """

    folder: Path
    seal: Seal
    whose: Callable[[], Collection[str] | None]
    contents: Callable[[], Collection[bytes] | None] = lambda: None

    def tell_of_few(self, data: str, least: int, *, keep: bool, how: Mapping[str, Any] | None = None) -> str:
        """Why updates of this run and of earlier ones together would tell of few patients, in words; empty if not.

        Args:
            data: the data set's name; case does not tell data sets apart.
            least: patients who must stand behind what leaves.
            keep: whether later runs are held to this one: a run that is refused binds nobody.
            how: what the job says of how the data are read.

        Raises:
            OSError: the record cannot be read or written.
            SealBroken: it is not as the site wrote it.
        """
        if (patients := self.whose()) is None:
            return ""
        chosen, name = self._tags(patients), data.casefold()
        images = self._tags(content.hex() for content in self.contents() or ())
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with kernel_lock(self.folder / LOCK, mode=0o600):
            known = self._read()
            earlier = [set(one["patients"]) for one in known.get(name, ())]
            if any(0 < len(chosen ^ one) < least for one in earlier):
                return OTHER_PATIENTS(least)
            before = [set(one["images"]) for sets in known.values() for one in sets if images and one["images"]]
            alike_read = self._tag(json.dumps(how or {}, sort_keys=True, default=str))
            for called, sets_of_it in known.items():
                for one in sets_of_it if images else ():
                    same = called == name and one.get("read") == alike_read
                    if one["images"] and 0 < _whose_differ(chosen, images, one, trusted=same) < least:
                        return OTHER_IMAGES(least)
            if chosen in earlier and (images in before or not images):
                return ""
            alike = {frozenset(one) for one in before if images & one and images != one}
            if images not in before and len(alike) >= max(_SETS, max(map(len, (images, *alike))) // least):
                return MANY_READINGS(len(alike))
            sets = len({frozenset(one) for one in earlier})
            if chosen not in earlier and sets >= max(_SETS, len(chosen.union(*earlier)) // least):
                return MANY_SETS(sets)
            if keep:
                found = {"patients": sorted(chosen), "images": sorted(images), "read": alike_read}
                self._write(known | {name: [*known.get(name, ()), found]})
        return ""

    def sizes(self) -> dict[str, list[int]]:
        """By data set how many patients each set has that later runs are held to.

        Raises:
            SealBroken: the record is not as the site wrote it.
        """
        return {data: [len(one["patients"]) for one in sets] for data, sets in self._read().items()}

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

    def _tags(self, words: Iterable[str]) -> set[str]:
        return set(map(self._tag, words))

    def _tag(self, word: str) -> str:
        return self.seal.tag(FILE, word)[:_DIGITS]

    def _read(self) -> dict[str, list[_Set]]:
        file = self.folder / FILE
        if not file.exists():
            return {}
        try:
            content = json.loads(file.read_bytes())
            self.seal.require(FILE, _text(content["sets"]), content["seal"])
        except (ValueError, KeyError, TypeError):
            raise SealBroken(f"{file} is not as this site wrote it") from None
        # An earlier version kept patients alone.
        return {
            name: [one if isinstance(one, dict) else {"patients": one, "images": []} for one in sets]
            for name, sets in content["sets"].items()
        }

    def _write(self, sets: dict[str, list[_Set]]) -> None:
        content = {"sets": sets, "seal": self.seal.tag(FILE, _text(sets))}
        write_bytes(self.folder / FILE, json.dumps(content).encode(), mode=0o600)


def _whose_differ(chosen: set[str], images: set[str], one: _Set, *, trusted: bool) -> int:
    """How many patients' images two runs do not have alike.

    Those of one run alone and those who are read otherwise, who have a hash in each. Where two jobs read the data in
    two ways they may call one patient by two names, and whoever is of one run alone may be in the other too: so many
    differ at least.
    """
    other = set(one["images"])
    if not trusted:
        return max(len(images - other), len(other - images))
    both, patients = len(images & other), set(one["patients"])
    return len(chosen ^ patients) + max(0, len(chosen & patients) - both)


def open_training_sets(
    folder: Path,
    key: bytes,
    whose: Callable[[], Collection[str] | None] = lambda: None,
    contents: Callable[[], Collection[bytes] | None] = lambda: None,
) -> TrainingSets:
    """Those in a kit's state folder, by the site's key; see :class:`TrainingSets`."""
    return TrainingSets(folder, Seal(key, "training sets"), whose, contents)


def _text(sets: dict[str, list[_Set]]) -> str:
    return "sets " + json.dumps(sets, sort_keys=True)
