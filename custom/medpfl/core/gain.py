"""What a site uses and what it gains over training alone, in words: the same in reports and in the site's own folder.

A gain is the difference of a measure on the same test cases, ``difference``, with the ends ``low`` and ``high`` of its
95 % interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Use = Literal["received", "best", "blend"]
"""What a site uses at the end (:mod:`medpfl.site.choice`)."""
Verdict = Literal["gains", "no difference found", "loses"]

ALONE = "alone"
NOTHING = 0.0005
"""A smaller difference, half of the last digit that is printed (0.1 points), is none, however narrow its interval: two
patients whose Dice differ by a thousandth of a point each are not harmed by it."""
LEAST_PATIENTS = 6
"""Of fewer a bootstrap has no interval, and shares of cases and AUCs show no difference: five differ the same way by
chance more often than an interval of 95 % allows."""
OF_CLASSES = ("accuracy", "balanced_accuracy")
"""Measures that say nothing where all test cases are of one class. The AUC is not defined there."""
MISSES = "An interval of 95 % misses the true difference in about one case of 20."
MISSES_MORE = (
    "Of a mean over few patients (of Dice, say, over fewer than 20) it misses it far more often, where some of these "
    "differ much from the others."
)
CONTAINS_0 = "An interval that contains 0 means that no difference was found, not that there is none."


def fewest_to_choose(use: Use) -> int:
    """Of so many independent cases some outcomes show at 5 % that one model is better.

    The signs of four that all agree do so by chance in a 16th. ``best`` divides its level by the models that it
    compares, up to six, and the signs of six agree in a 64th.
    """
    return 7 if use == "best" else 5


def verdict(gained: Mapping[str, float] | None) -> Verdict | None:
    """A difference with its interval in a word."""
    if gained is None:
        return None
    if abs(gained["difference"]) < NOTHING or gained["low"] <= 0 <= gained["high"]:
        return "no difference found"
    return "gains" if gained["low"] > 0 else "loses"


def in_use(used: Mapping[str, Any]) -> str:
    """``0.6 as published + 0.4 alone``.

    Args:
        used: ``candidate``, and its ``weight`` beside the model that the site trained alone.
    """
    if used["weight"] in (0, 1):
        return (ALONE, used["candidate"])[int(used["weight"])]
    weight = min(max(round(used["weight"], 2), 0.01), 0.99)
    return f"{weight:g} {used['candidate']} + {round(1 - weight, 2):g} alone"
