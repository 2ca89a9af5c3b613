"""Every method of a comparison against every other: mean ranks, and differences paired by site and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from medpfl.core.measure import NONE, Measure
from medpfl.core.ranks import midranks
from medpfl.report.gains import Over, gains, over_seeds
from medpfl.report.measures import change, first
from medpfl.report.reading import site_scores

TITLE = "Each method against each"
RANKS = "Mean rank: of the methods at each site, 1 the best, equals sharing theirs."
Scores = Mapping[str, Mapping[Any, Any]]
"""By label and seed the sites' measures."""


def mean_ranks(scores: Scores, measure: Measure) -> dict[str, Over]:
    """Each method's rank among all at a site, 1 the best and equals sharing theirs, as mean over a seed's sites.

    Sites that not all methods have a value of count for none (Demsar, JMLR 7, 2006, with site and seed as data set).

    Returns:
        By label, mean and standard deviation over seeds.
    """
    by_seed = []
    for seed in next(iter(scores.values()), ()):
        values = [site_scores(of[seed], measure.name) for of in scores.values()]
        shared = sorted(set.intersection(*map(set, values)))
        gained = np.array([[measure.gain(of[site], 0) for of in values] for site in shared])
        by_seed.append(midranks(-gained).mean(0).tolist() if shared else [None] * len(values))
    return {label: over_seeds(ranks[i] for ranks in by_seed) for i, label in enumerate(scores)}


def every_pair(scores: Scores, measure: Measure) -> list[dict[str, Any]]:
    """What each method gains over each one after it (:func:`~medpfl.report.gains.gains`), as ``label`` and ``to``."""
    return [
        {"label": one, "to": other, **gains(scores[one], scores[other], measure)}
        for one, other in combinations(scores, 2)
    ]


def pair_rows(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column heads, and a row for each method with its mean rank and what it gains over each other.

    None where there are only two, or an earlier version's comparison has no pairs.
    """
    labels = [group["label"] for group in comparison["groups"]]
    if len(labels) < 3 or not comparison.get("pairs"):
        return [], []
    measure = first(comparison)
    cells = {label: dict.fromkeys(labels, NONE) for label in labels}
    for pair in comparison["pairs"]:
        one, other = pair["label"], pair["to"]
        cells[one][other] = _cell(measure, pair["mean"], pair["sd"], pair["better"], pair["pairs"])
        back = None if pair["mean"] is None else -pair["mean"]
        cells[other][one] = _cell(measure, back, pair["sd"], pair["worse"], pair["pairs"])
    ranks = {group["label"]: group["rank"] for group in comparison["groups"]}
    rows = [[label, told_rank(ranks[label]), *cells[label].values()] for label in labels]
    return ["Algorithm", "Mean rank", *(f"over {label}" for label in labels)], rows


def told_rank(rank: Over) -> str:
    """With its deviation."""
    if rank["mean"] is None:
        return NONE
    return f"{rank['mean']:.2f}" + ("" if rank["sd"] is None else f" ± {rank['sd']:.2f}")


def _cell(measure: Measure, gain: float | None, sd: float | None, better: int, pairs: int) -> str:
    return NONE if gain is None else f"{change(measure, gain, sd)} ({better} of {pairs})"


def pair_note(comparison: Mapping[str, Any]) -> str:
    """What the table says, in sentences."""
    measure = first(comparison)
    seeds: Sequence[Any] = comparison["seeds"]
    spread = ", ± standard deviation over seeds" if len(seeds) > 1 else ""
    longer = [group["label"] for group in comparison["groups"] if group.get("further")]
    some = len({group.get("further", "") for group in comparison["groups"]}) > 1
    more = f" {', '.join(longer)}: trained further at the end, part of what is gained." if some else ""
    return (
        f"What a row's method gains over a column's in {measure.title}{_in(measure)}, paired by site and seed{spread}; "
        f"in brackets in how many pairs it is better. {RANKS} No test is made "
        "here, since pairs of a seed are not independent, nor are seeds that draw from the same images; the "
        f"comparison.csv of `medpfl compare` has every site's value for one of your own.{more}"
    )


def _in(measure: Measure) -> str:
    return f" ({measure.gained_in})" if measure.gained_in else ""
