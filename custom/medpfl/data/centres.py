"""Data that are in centres of their own: which site is which centre, and which centres only test."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.site_data import Part
from medpfl.data.arguments import named_classes
from medpfl.data.partition.by_patient import divide_patients
from medpfl.data.patients import Sample, count_people, named_alike, person, set_aside, split_patients

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

S = TypeVar("S", bound=Sample)


@dataclass(frozen=True)
class Centres:
    """The centres in a folder, and what a run makes of them.

    Attributes:
        names: in their order.
        root: where they are, for messages.
        config: the run.
    """

    names: tuple[str, ...]
    root: Path
    config: RunConfig

    @cached_property
    def held_out(self) -> list[str]:
        """Names of those that only test."""
        return held_out_centres(self.names, self.root, self.config.held_out)

    @cached_property
    def sites(self) -> dict[str, str]:
        """Site name to centre in a simulation: the first is site-1; UserError if there are more or fewer than sites."""
        training = [name for name in self.names if name not in self.held_out]
        if len(training) != self.config.sites:
            aside = f" and {len(self.held_out)} held out" if self.held_out else ""
            one = "; --partition dirichlet:A or iid divides it over simulated sites" if len(self.names) == 1 else ""
            asked, rest = self.config.names or (), ""
            if asked and set(asked) < set(training):
                out = ",".join(name for name in self.names if name not in asked)
                rest = f"; --held-out {out} keeps the others out of training"
            wanted = ",".join(asked) or self.config.sites
            raise UserError(
                f"--sites {wanted}: {self.root} has {count(len(training), 'centre')} to train at{aside}{rest}{one}"
            )
        names = self.config.site_names
        if (wrong := set(names) - set(training)) and len(wrong) < len(names):
            raise UserError(
                f"--sites {','.join(names)}: {self.root} has no centre {min(wrong)!r}: there are "
                f"{', '.join(training)}; give the names of all, or others for all of them"
            )
        # Sites that are called like the centres are those, in whatever order they are given.
        return dict(zip(names, names if set(names) == set(training) else training, strict=True))

    @property
    def used(self) -> list[str]:
        """Names of those that a run reads: its sites' and those that only test."""
        return [*self.sites.values(), *self.held_out]

    def of(self, site: str) -> str:
        """A site's centre; a hospital's own folder has one, whatever the site is called."""
        if len(self.names) == 1 and self.config.sites > 1:
            return self.names[0]
        if site not in self.sites:
            raise UserError(f"{self.root}: no centre for {site}: there are {', '.join(self.names)}")
        return self.sites[site]


def is_divided(names: Sequence[str], config: RunConfig) -> bool:
    """Whether a run divides the one centre that there is over simulated sites; several are what they are."""
    return len(names) == 1 and config.sites > 1 and config.partition != "natural"


def require_one(names: Sequence[str], root: Path, partition: str, held_out: int | str) -> None:
    """UserError if a partition is asked for where there are several centres, or one that is to be held out."""
    if len(names) != 1:
        listed = ", ".join(names)
        raise UserError(f"--partition {partition}: divides one centre, and {root} has {len(names)}: {listed}")
    if held_out:
        raise UserError(f"--held-out {held_out}: with --partition {partition} all sites train")


def require_natural(config: RunConfig) -> None:
    """UserError if a job would carry a partition of one hospital's patients to hospitals."""
    if config.partition != "natural":
        raise UserError(
            f"--partition {config.partition}: is for simulated sites; in a job each hospital has its own data"
        )


def require_portable(name: str, data: str, what: str, remedy: str, *, manifests: bool = False) -> None:
    """UserError if sites could not look in their data folder for data of this name.

    Args:
        name: what a job would call them.
        data: as the user gave them.
        what: they are, in words.
        remedy: what to do.
        manifests: a name that ends in ``.json`` would be read as a manifest.
    """
    if not name.strip(" .") or any(sign in name for sign in "/\\:") or (manifests and name.lower().endswith(".json")):
        raise UserError(f"{data}: a job names {what}, and sites cannot look for {name!r} in $MEDPFL_DATA: {remedy}")


def as_sites(centres: Mapping[str, tuple[S, ...]], config: RunConfig) -> Mapping[str, tuple[S, ...]]:
    """With a partition the samples of the one centre as those of simulated sites, else the centres as they are."""
    if not is_divided(tuple(centres), config):
        return centres
    (samples,) = centres.values()
    return divide_patients(samples, config.partition, config.site_names, config.seed)


class OfCentres(ABC, Generic[S]):
    """What sources of centres' data have in common."""

    config: RunConfig
    centres: Centres

    @property
    @abstractmethod
    def _divided(self) -> bool:
        """Whether the centres are simulated sites that one centre is divided over."""

    @abstractmethod
    def _samples(self, centre: str) -> Sequence[S]:
        """All of a centre."""

    def _undivided(self) -> Mapping[str, Sequence[S]]:
        """All samples that a run reads by centre, also where one is divided over simulated sites."""
        return {centre: self._samples(centre) for centre in self.centres.used}

    def _drawn(self, centre: str) -> dict[Part, list[S]]:
        """A centre's samples, divided by patient."""
        c = self.config
        return split_patients(self._samples(centre), c.fractions, c.train_fraction, c.seed, centre)

    def _parts(self, centre: str) -> Mapping[Part, Sequence[S]]:
        """A centre's samples by part, without what is set aside."""
        return self._drawn(centre)

    def _held_out(self, divided: bool) -> dict[str, Mapping[Part, Sequence[S]]]:
        """Samples of the centres that take no part in training: all to test, or divided as a site's.

        As in a division, a person has one name in them.
        """
        if divided:
            return {centre: self._parts(centre) for centre in self.centres.held_out}
        none: dict[Part, Sequence[S]] = {"train": [], "validation": []}
        return {centre: {**none, "test": named_alike(self._samples(centre))} for centre in self.centres.held_out}

    def training_patients(self, name: str) -> frozenset[str]:
        """See :func:`medpfl.data.source.training_patients`."""
        return self.patients(name, "train")

    def patients(self, name: str, part: Part) -> frozenset[str]:
        """Whose samples a part of a site's data has."""
        return frozenset(person(sample.patient) for sample in self._parts(self.centres.of(name))[part])

    def _in_patients(self, parts: Mapping[Part, Sequence[S]]) -> dict[str, int]:
        """How many patients the parts of a site are of, and those that judge: what it uses, and what it gains."""
        every = [sample for samples in parts.values() for sample in samples]
        judging: tuple[Part, ...] = ("validation", "test")
        return {"patients": self._people(every)} | {f"{part}_patients": self._people(parts[part]) for part in judging}

    def _people(self, samples: Sequence[S]) -> int:
        """How many patients samples are of."""
        return count_people(samples)

    def _number(self, samples: Sequence[S]) -> int:
        """How many samples results say that these are."""
        return len(samples)

    def _described_here(self, name: str, md5: str, classes: Sequence[str], sites: dict[str, Any]) -> dict[str, Any]:
        """The ``data`` part of results.json where the centres are here; their own kind may say more."""
        return {
            "name": name,
            "source": str(self.centres.root),
            "md5": md5,
            "classes": list(classes),
            "partition": self.config.partition if self._divided else "natural",
            "sites": sites,
            "held_out": {centre: self._number(self._samples(centre)) for centre in self.centres.held_out},
        }

    def _md5(self, line: Callable[[S], str], key: Callable[[S], Any] | None = None) -> str:
        """Of a line about each sample, whose it is and its given part, in the samples' order or sorted by ``key``.

        The same whatever simulated sites one centre is divided over: seeds draw others, of the same data.
        """
        lines = [
            f"{centre}\t{line(sample)}\t{sample.patient}\t{sample.split}"
            for centre, samples in self._undivided().items()
            for sample in (sorted(samples, key=key) if key else samples)
        ]
        return hashlib.md5("\n".join(lines).encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()

    def _all_here(self) -> bool:
        """Whether this machine has every centre's data, as in a simulation."""
        try:
            return bool(self.centres.sites)
        except UserError:
            return False

    @property
    def _classes(self) -> tuple[str, ...]:
        """The classes that the job names; empty where the data say them."""
        return named_classes(self.config.data_args)


class SetsAside(OfCentres[S]):
    """Sources of which a share of the training samples is set aside (``--holdout``)."""

    def _parts(self, centre: str) -> Mapping[Part, Sequence[S]]:
        return self._parts_and_aside(centre)[0]

    def _aside(self, centre: str) -> list[S]:
        return self._parts_and_aside(centre)[1]

    def _parts_and_aside(self, centre: str) -> tuple[dict[Part, Sequence[S]], list[S]]:
        return set_aside(self._drawn(centre), self.config.holdout, self.config.seed, centre)


def held_out_centres(names: Sequence[str], root: Path, asked: int | str) -> list[str]:
    """Names of the centres that ``--held-out`` keeps out of training; UserError unless one is left to train at."""
    if not asked:
        return []
    if isinstance(asked, int):
        chosen = list(names[-asked:])
    else:
        chosen = list(dict.fromkeys(name.strip() for name in asked.split(",")))
        if unknown := [name for name in chosen if name not in names]:
            raise UserError(f"--held-out {unknown[0]}: {root} has the centres {', '.join(names)}")
    if len(chosen) == len(names):
        raise UserError(
            f"--held-out {asked}: at least one centre must be left to train at, and {root} has {len(names)}: "
            + ", ".join(names)
        )
    return chosen


def described_elsewhere(name: str, classes: Sequence[str] = ()) -> dict[str, Any]:
    """The ``data`` part of results.json where the data are not here: what the job itself says."""
    return {
        "name": name,
        "source": None,
        "md5": None,
        "classes": list(classes),
        "partition": "natural",
        "sites": {},
        "held_out": {},
    }
