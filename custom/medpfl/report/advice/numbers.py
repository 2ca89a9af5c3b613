"""What sites tell before training, their numbers of samples, and the features of a regime that follow from them.

The same functions describe the benchmarks' partitions and a user's sites. No library is needed for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, lgamma
from statistics import fmean, median
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from medpfl.core.errors import UserError

PARTS = ("train", "validation", "test")


class SiteNumbers(NamedTuple):
    """One site's numbers of samples.

    Attributes:
        name: the site's.
        train, validation, test: of the parts.
        classes: by class, of the training samples or of all; None where the site does not tell.
    """

    name: str
    train: int
    validation: int
    test: int
    classes: Mapping[str, int] | None = None

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any], *, one_class: bool) -> SiteNumbers:
        """From an entry of ``data.sites`` in results.json; what else it says is left out.

        Args:
            name: the site's.
            entry: of it.
            one_class: each sample is of one class. Of others ``classes`` counts in how many each occurs, which tells
                no share.
        """
        return cls(name, *(int(entry[part]) for part in PARTS), (one_class and entry.get("classes")) or None)

    def to_json(self) -> dict[str, Any]:
        """Numbers alone, without the name."""
        return {part: getattr(self, part) for part in PARTS} | {"classes": self.classes and dict(self.classes)}


class Features(BaseModel):
    """A regime in six numbers.

    Attributes:
        sites: how many train.
        train: median number of training samples at a site.
        validation: likewise, for validation.
        skew: :func:`label_skew`; None where it is not known.
        unevenness: :func:`unevenness`.
        shift: whether the same class looks different from site to site (scanner, stain, protocol); None where nobody
            says it. Numbers cannot tell.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sites: int = Field(ge=2)
    train: float = Field(ge=1, allow_inf_nan=False)
    validation: float = Field(ge=0, allow_inf_nan=False)
    skew: float | None = Field(ge=0, le=1)
    unevenness: float = Field(ge=0, lt=1)
    shift: bool | None


def shift_of(partition: Any) -> bool | None:
    """Whether images look different from site to site, by the partition that results name.

    False where one data set is dealt to the sites; None, not known, where each has its own, where a file said whose
    each image is, and where results do not say.
    """
    dealt = isinstance(partition, str) and partition and not partition.startswith(("natural", "file:"))
    return False if dealt else None


def features_of(sites: Sequence[SiteNumbers], shift: bool | None = None) -> Features:
    """The features of two sites or more, each with a training sample."""
    told = [site.classes for site in sites if site.classes and sum(site.classes.values())]
    return Features(
        sites=len(sites),
        train=median(site.train for site in sites),
        validation=median(site.validation for site in sites),
        skew=label_skew(told) if len(told) > 1 else None,
        unevenness=unevenness([site.train for site in sites]),
        shift=shift,
    )


def require_classes(sites: Sequence[SiteNumbers]) -> None:
    """UserError if all sites tell the classes of samples that have one each, and all samples are of the same."""
    told = [site.classes for site in sites if site.classes and sum(site.classes.values())]
    there = {name for classes in told for name, number in classes.items() if number}
    if len(there) == 1 and len(told) == len(sites):
        raise UserError(
            f"all samples are of class {there.pop()!r}, so that there is nothing to tell apart: give the numbers of "
            "every class"
        )


def label_skew(sites: Sequence[Mapping[str, int]]) -> float:
    """How different the sites' classes are, beyond chance: 0 as if dealt at random, 1 with no class in common.

    A site's distance d is the total variation distance, in [0, 1], between its class frequencies and those of all
    other sites' samples together. Had all samples been dealt at random to sites of these sizes, d would be e on
    average, which is large where samples are few. The skew is (mean d - mean e) / (1 - mean e), means over the sites,
    and 0 if below 0.

    Args:
        sites: numbers by class, for two sites or more that have samples; a class that is not named has none.
    """
    pooled: dict[str, int] = {}
    for classes in sites:
        for name, number in classes.items():
            pooled[name] = pooled.get(name, 0) + number
    total = sum(pooled.values())
    found, chance = [], []
    for classes in sites:
        own = sum(classes.values())
        rest = total - own
        pairs = [(classes.get(name, 0), of_all) for name, of_all in pooled.items()]
        found.append(sum(abs(here / own - (of_all - here) / rest) for here, of_all in pairs) / 2)
        # here / own - (of_all - here) / rest is (here - its mean) * total / (own * rest).
        dealt = sum(_mean_deviation(total, of_all, own) for of_all in pooled.values())
        chance.append(min(1.0, dealt * total / (2 * own * rest)))
    expected = fmean(chance)
    if expected > 1 - 1e-9:
        return 0.0
    return min(1.0, max(0.0, (fmean(found) - expected) / (1 - expected)))


def unevenness(sizes: Sequence[int]) -> float:
    """The share of all samples, in [0, 1), that would have to move for all sites to have equally many."""
    mean = fmean(sizes)
    return sum(abs(size - mean) for size in sizes) / (2 * sum(sizes))


def _mean_deviation(total: int, marked: int, drawn: int) -> float:
    """E|X - EX| of a hypergeometric number: of the marked among so many drawn without replacement.

    2 m (total - marked - drawn + m) / total * P(X = m) with m the least whole number above EX (Ramasubban, Biometrika
    45, 1958).
    """
    m = drawn * marked // total + 1
    if m > min(drawn, marked):
        return 0.0
    logarithm = _log_binomial(marked, m) + _log_binomial(total - marked, drawn - m) - _log_binomial(total, drawn)
    return 2 * m * (total - marked - drawn + m) / total * exp(logarithm)


def _log_binomial(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
