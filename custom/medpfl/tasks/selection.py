"""Which measure selects the round, where the user names none: decided once, before round 1.

Every site says in its hello how many validation cases it has, and which class more than :data:`LARGE` of them are of,
if one is. No number of any class leaves. From that alone the server decides, in every engine alike. A site that tells
no measures tells nothing here either: it has no part in the choice, and selects by its own cases and the same rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from medpfl.core.measure import LOSS
from medpfl.core.numbers_in_words import count
from medpfl.core.site_data import Part, SiteData, labels_of
from medpfl.tasks.task import Task

AUTO = "auto"
"""In a configuration: the measure that fits."""
FEW = 20
"""Validation cases of all sites together, below which a share of right ones takes few values and many rounds tie."""
LARGE = 0.8
"""A class with a larger share of the cases makes accuracy reward whoever always says it."""


def seen(learned: Task, data: SiteData, part: Part = "validation") -> dict[str, Any]:
    """What a site tells: ``cases``, their number, and ``majority``, the class of nearly all of them, or None."""
    samples, bags = data.samples(part), data.bags(part)
    if not learned.one_class or not samples:
        return {"cases": samples if bags is None else len(bags.unique()), "majority": None}
    labels = labels_of(data, part)
    if bags is not None:  # a patient's samples have one label
        labels = torch.zeros(int(bags.max()) + 1, dtype=labels.dtype, device=labels.device).scatter(0, bags, labels)
    # What the loss leaves out is below 0, and one far too large would make a count for each class up to it.
    classes, numbers = labels[labels >= 0].unique(return_counts=True)
    found = counted(numbers.tolist())
    most = found["majority"]
    return found | {"majority": None if most is None else int(classes[most])}


def lead(learned: Task, data: SiteData) -> dict[str, str]:
    """``lead``, the measure that a site's page begins with where nearly all its test cases are of one class."""
    one_sided = learned.for_one_sided and seen(learned, data, "test")["majority"] is not None
    return {"lead": learned.for_one_sided} if one_sided else {}


def counted(by_class: Sequence[int]) -> dict[str, Any]:
    """The same from numbers of cases by class."""
    cases = sum(by_class)
    most = max(range(len(by_class)), key=by_class.__getitem__, default=None)
    large = most is not None and by_class[most] > LARGE * cases
    return {"cases": cases, "majority": most if large else None}


def selection(learned: Task, asked: str, told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measure that selects the round, and why.

    A class counts as large if it is at more than half of the sites, for the mean over sites counts each alike: where
    every site has another large class, a model must tell them apart.

    Args:
        learned: the task.
        asked: a measure, or :data:`AUTO`.
        told: of each site with validation measures, :func:`seen`.

    Returns:
        ``measure``; ``asked``, whether the user named it; ``cases`` of all sites; ``one_sided``: the ``class`` that is
        large, at how many ``sites`` ``of`` how many, or None; ``lead``: the measure that reports begin with then, or
        None for the task's first.
    """
    those = [site for site in told if site["cases"]]
    cases = sum(site["cases"] for site in those)
    large = Counter(site["majority"] for site in those if site["majority"] is not None).most_common(1)
    one_sided = None
    if large and 2 * large[0][1] > len(those):
        one_sided = {"class": large[0][0], "sites": large[0][1], "of": len(those)}
    lead = learned.for_one_sided if one_sided and learned.for_one_sided else None
    if asked != AUTO:
        measure = asked
    elif 0 < cases < FEW:
        measure = learned.for_few or learned.selecting[0]
    else:
        measure = lead or learned.selecting[0]
    return {"measure": measure, "asked": asked != AUTO, "cases": cases, "one_sided": one_sided, "lead": lead}


def in_words(learned: Task, chosen: Mapping[str, Any], classes: Sequence[str] = (), *, mixes: bool = True) -> list[str]:
    """What a reader must know of the choice, a sentence or two for each reason; none where the task's first selects.

    Args:
        learned: the task.
        chosen: of :func:`selection`.
        classes: their names, as far as they are known.
        mixes: whether the sites' models reach each other; where not, each site selects its own round.
    """
    titles = {m.name: m.title for m in (*learned.measures, LOSS)}
    title, words = titles[chosen["measure"]], []
    if (large := chosen["one_sided"]) and chosen["lead"]:
        number, first = large["class"], titles[learned.selecting[0]]
        name = classes[number] if number < len(classes) else number
        words.append(
            f"Class {name} has more than {LARGE:.0%} of the validation cases at {large['sites']} of {large['of']} "
            f"sites, so {first} rewards whoever always says it: reports begin with {titles[chosen['lead']]}"
            + (", which selects the round." if chosen["measure"] == chosen["lead"] else f"; {title} selects the round.")
        )
    if 0 < chosen["cases"] < FEW:
        what = "The round is" if mixes else "Each site's round, by its own cases, is"
        words.append(
            f"{what} selected on {count(chosen['cases'], 'validation case')} in all, fewer than {FEW}: by {title}"
            + ("" if chosen["asked"] or chosen["measure"] != LOSS.name else ", which tells more of few cases")
            + ". Another round may be as good."
        )
    return words
