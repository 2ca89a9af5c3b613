"""What our benchmarks found, by regime: ``regimes.json``, which ``benchmarks/regimes_table.py --json`` writes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from math import log, sqrt
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from medpfl.report.advice.known import Measure
from medpfl.report.advice.numbers import Features

UNITS = {"sites": 4.0, "train": 4.0, "validation": 10.0, "skew": 0.15, "unevenness": 0.3, "shift": 1.0}
"""What makes a distance of 1: so many times as many sites, training or validation samples, or such a difference."""
_TIMES = ("sites", "train", "validation")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(_Part):
    """A method in a regime, against training alone in the same rounds; its measure on test cases, in percentage points.

    Attributes:
        title: the method and what is done with it.
        command: how ``medpfl run`` is asked for it; None if it is no command.
        federated: whether sites take part in anything; else it is a rival that one site has by itself.
        seeds: how many.
        sites: how many gains there are, one a site and seed.
        gain: their mean.
        sd_seeds: standard deviation of the seeds' mean gains; None with one seed.
        sd_sites: standard deviation of the gains.
        worse_off: share of the gains below -1 point.
        worst: the least gain.
        each_round: what sites train in a round beside their local epochs, which training alone does not.
        chooses: whether sites use what their validation cases speak for: the better of two models, or both together.
    """

    title: str = Field(min_length=1)
    command: str | None
    federated: bool
    seeds: int = Field(ge=1)
    sites: int = Field(ge=1)
    gain: float = Field(ge=-100, le=100)
    sd_seeds: float | None = Field(ge=0, le=100)
    sd_sites: float = Field(ge=0, le=100)
    worse_off: float = Field(ge=0, le=1)
    worst: float = Field(ge=-100, le=100)
    each_round: str
    chooses: bool

    @property
    def number_worse_off(self) -> int:
        """Of the gains, those below -1 point."""
        return round(self.worse_off * self.sites)


class Regime(_Part):
    """A regime of a benchmark.

    Attributes:
        name: in a word.
        description: in a line.
        measure: what was measured.
        network: what was trained.
        features: of its partition, means over the seeds. Of masks there is no label skew.
        seeds: which were run.
        alone: mean of the measure of training alone, in [0, 1].
        rows: what was measured.
    """

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    measure: Measure
    network: str
    features: Features
    seeds: tuple[int, ...] = Field(min_length=1)
    alone: float = Field(ge=0, le=1)
    rows: tuple[Row, ...]

    @model_validator(mode="after")
    def _whole(self) -> Regime:
        if (self.features.skew is None) != (self.measure == "dice") or self.features.shift is None:
            raise ValueError(f"{self.name}: of a benchmark every feature is known")
        titles = [row.title for row in self.rows]
        if len(set(titles)) != len(titles):
            raise ValueError(f"{self.name}: a row is there twice")
        if not any(row.federated for row in self.rows):
            raise ValueError(f"{self.name}: there is no method in it")
        return self

    def row(self, title: str) -> Row | None:
        """The row of that title, if it was measured."""
        return next((row for row in self.rows if row.title == title), None)


class Regimes(_Part):
    """The file.

    Attributes:
        schema_: of this file.
        regimes: those that were run.
    """

    schema_: Literal[2] = Field(alias="schema")
    regimes: tuple[Regime, ...] = Field(min_length=1)

    def of(self, measure: Measure) -> tuple[Regime, ...]:
        """Those in which that was measured."""
        return tuple(regime for regime in self.regimes if regime.measure == measure)


def shipped() -> Regimes:
    """What came with the package."""
    return Regimes.model_validate_json((files(__package__) / "regimes.json").read_bytes())


def parts_of_distance(one: Features, other: Features) -> dict[str, float]:
    """By feature how far two regimes are apart, in :data:`UNITS`; 0 for what one of them does not know."""
    found = {}
    for name, unit in UNITS.items():
        a, b = getattr(one, name), getattr(other, name)
        if a is None or b is None:
            found[name] = 0.0
        elif name in _TIMES:
            found[name] = abs(log((1 + a) / (1 + b))) / log(unit)
        else:
            found[name] = abs(a - b) / unit
    return found


def distance(one: Features, other: Features) -> float:
    """How far two regimes are apart: the root of the summed squares of :func:`parts_of_distance`."""
    return sqrt(sum(part**2 for part in parts_of_distance(one, other).values()))


def nearest(features: Features, regimes: Sequence[Regime]) -> list[tuple[float, Regime]]:
    """All regimes with their distances, the nearest first."""
    found = [(distance(features, regime.features), regime) for regime in regimes]
    return sorted(found, key=lambda pair: (pair[0], pair[1].name))
