"""From a regime's features to what our benchmarks found in regimes like it, and how much that can be relied on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from medpfl.report.advice.known import Measure
from medpfl.report.advice.numbers import Features
from medpfl.report.advice.regimes import Regime, nearest

ALIKE, FAR = 1.0, 2.0
"""Below the one distance a regime counts as like another, beyond the other as unlike."""
_MOST_ALIKE, _MOST_NEAR, _NEARLY = 4, 2, 0.5
EVEN, SKEWED = 0.0, 0.8
"""The label skews for which it is answered where it is not known."""
POINT = 1.0
"""A difference of the measure, in percentage points, that is worth a word."""
SEEDS = 3
"""Of each regime, below which the answer is unsure."""

Sure = Literal["no", "little", "somewhat"]


@dataclass(frozen=True)
class Found:
    """A row over the regimes that the answer rests on; points are of their measure over training alone.

    Attributes:
        title, command, federated, each_round: see :class:`~medpfl.report.advice.regimes.Row`.
        gain: mean over the regimes.
        gains: by regime.
        worst: the least gain of any site.
        worse_off: sites that lost more than a point, of ``sites``.
        sites: one a regime, site and seed.
        seeds: least number of a regime.
    """

    title: str
    command: str | None
    federated: bool
    gain: float
    gains: tuple[float, ...]
    worst: float
    worse_off: int
    sites: int
    seeds: int
    each_round: str = ""


@dataclass(frozen=True)
class Answer:
    """What the benchmarks say to one set of features.

    Attributes:
        features: of the sites; with the skew that is supposed, where it is not known.
        supposed: whether it is.
        near: all regimes with their distances, the nearest first.
        regimes: those that the answer rests on.
        rows: what all of these have, by mean gain.
        partial: titles that only some of these have.
        nearness: ``alike``, ``near`` or ``far``: the nearest regime.
    """

    features: Features
    supposed: bool
    near: tuple[tuple[float, Regime], ...]
    regimes: tuple[Regime, ...]
    rows: tuple[Found, ...]
    partial: tuple[str, ...]
    nearness: Literal["alike", "near", "far"]

    @property
    def measure(self) -> Measure:
        """What was measured."""
        return self.regimes[0].measure

    @property
    def federated(self) -> tuple[Found, ...]:
        """Without rivals that a site has by itself."""
        return tuple(row for row in self.rows if row.federated)

    @property
    def judged(self) -> tuple[Found, ...]:
        """Those that train no more in a round than a site alone did; all if there is none such."""
        return tuple(row for row in self.federated if not row.each_round) or self.federated

    @property
    def longer(self) -> Found | None:
        """The method of the highest mean gain, if it trains more in a round: the epochs may be what is gained."""
        first = max(self.federated, key=lambda row: row.gain)
        return first if first.each_round else None

    @property
    def by_mean(self) -> Found:
        """The method of the highest mean gain, of those that are judged."""
        return max(self.judged, key=lambda row: row.gain)

    @property
    def by_worst(self) -> Found:
        """Of those whose worst site is within a point of the best one's, the one of the highest mean."""
        least = max(row.worst for row in self.judged)
        return max((row for row in self.judged if least - row.worst <= POINT), key=lambda row: row.gain)

    @property
    def rival(self) -> Found | None:
        """What did best without any other site."""
        return max((row for row in self.rows if not row.federated), key=lambda row: row.gain, default=None)

    @property
    def take_part(self) -> Literal["paid", "no more than alone", "less than alone", "no difference", "cost"]:
        """What taking part was worth with the best method by mean: beside training alone, and what a site can do then.

        ``no more than alone``: it gained, and within a point as much as a site gains by itself with the steps or the
        second model that the best method has; ``less than alone``: a site gains more than a point more by itself.
        """
        if self.by_mean.gain > POINT:
            ahead = self.by_mean.gain - (self.rival.gain if self.rival else 0.0)
            return "paid" if ahead > POINT else "less than alone" if ahead < -POINT else "no more than alone"
        return "cost" if self.by_mean.gain < -POINT else "no difference"

    @property
    def agreeing(self) -> int:
        """In how many of the regimes the best method by mean is within a point of their best."""
        best = [max(row.gains[k] for row in self.judged) for k in range(len(self.regimes))]
        return sum(most - own <= POINT for most, own in zip(best, self.by_mean.gains, strict=True))

    @property
    def one_verdict(self) -> bool:
        """Whether the best method by mean gains in all of the regimes, loses in all, or moves by a point at most."""
        gains = self.by_mean.gains
        return min(gains) > 0 or max(gains) < 0 or max(map(abs, gains)) <= POINT

    @property
    def sure(self) -> Sure:
        """``no``, ``little`` or ``somewhat``; never more, since the benchmarks are of other data."""
        if self.nearness == "far":
            return "no"
        agree = self.one_verdict and self.agreeing == len(self.regimes)
        enough = len(self.regimes) > 1 and self.by_mean.seeds >= SEEDS
        return "somewhat" if self.nearness == "alike" and enough and agree else "little"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        titles = {"by_mean": self.by_mean, "by_worst_site": self.by_worst, "rival": self.rival}
        return {
            "measure": self.measure,
            "skew": self.features.skew,
            "skew_supposed": self.supposed,
            "nearness": self.nearness,
            "distances": {regime.name: round(d, 3) for d, regime in self.near},
            "rests_on": {regime.name: list(regime.seeds) for regime in self.regimes},
            "take_part": self.take_part,
            "sure": self.sure,
            "agreeing": self.agreeing,
            **{name: row.title if row else None for name, row in titles.items()},
            "rows": [asdict(row) for row in self.rows],
            "rows_of_some": list(self.partial),
        }


def answers(features: Features, regimes: Sequence[Regime]) -> list[Answer]:
    """The answer; two where the label skew is not known, for even and for skewed labels.

    Args:
        features: of the sites.
        regimes: of one measure; those of masks know no label skew, and neither need the sites.
    """
    if features.skew is not None or regimes[0].features.skew is None:
        return [_answer(features, False, regimes)]
    return [_answer(features.model_copy(update={"skew": skew}), True, regimes) for skew in (EVEN, SKEWED)]


def _answer(features: Features, supposed: bool, regimes: Sequence[Regime]) -> Answer:
    near = nearest(features, regimes)
    least = near[0][0]
    nearness = "alike" if least < ALIKE else "near" if least <= FAR else "far"
    if nearness == "alike":
        chosen = [regime for d, regime in near if d < ALIKE][:_MOST_ALIKE]
    else:
        chosen = [regime for d, regime in near if d <= least + _NEARLY][:_MOST_NEAR]
    choosing = features.validation > 0  # else there is nothing to choose by
    measured = {regime.name: [row for row in regime.rows if choosing or not row.chooses] for regime in chosen}
    methods = [row.title for row in measured[chosen[0].name] if row.federated]
    if not any(all(regime.row(title) for regime in chosen) for title in methods):
        chosen = chosen[:1]  # they have no method in common
    titles = dict.fromkeys(row.title for regime in chosen for row in measured[regime.name])
    common = [title for title in titles if all(regime.row(title) for regime in chosen)]
    rows = sorted((_found(title, chosen) for title in common), key=lambda row: -row.gain)
    partial = tuple(title for title in titles if title not in common)
    return Answer(features, supposed, tuple(near), tuple(chosen), tuple(rows), partial, nearness)


def _found(title: str, regimes: Sequence[Regime]) -> Found:
    rows = [row for regime in regimes if (row := regime.row(title))]
    return Found(
        title,
        rows[0].command,
        rows[0].federated,
        fmean(row.gain for row in rows),
        tuple(row.gain for row in rows),
        min(row.worst for row in rows),
        sum(row.number_worse_off for row in rows),
        sum(row.sites for row in rows),
        min(row.seeds for row in rows),
        rows[0].each_round,
    )
