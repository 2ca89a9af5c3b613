"""Measures as a site's policy lets them leave: as they are, rounded, or not at all.

Exact accuracies of models that the server chooses give class counts and the label of a known image; two digits, on no
fewer patients than a minimum, give shares alone. A mean over classes, labels or structures takes those alone that so
many patients have (:mod:`medpfl.tasks.told`). Further measures of the test stay at the site then, and so do those of
each structure or label: of a rare one they would be a single case's, and say whether there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medpfl.site.policy import SitePolicy
from medpfl.tasks.further import NAMES
from medpfl.tasks.told import Measured

DIGITS = 2
"""Of measures that leave: after the point below 1, in all above."""
TENS = 10
"""Numbers of samples leave as multiples of it, those of cases with the multiple below or ``least_patients``."""

_MOST_LOSS = 10.0
"""A loss above it says the same as it: large logits would make the share of a class in it exact."""

_EACH = ("_by_class", "_by_label")
"""How the names of measures of each structure or label end."""
_MEASURED = ("validation", "received", "adapted", "alone", "used")
_EPOCH = {"validation": "epoch", "alone_validation": "alone_epoch"}
"""The epoch that is kept, by the name of measures of all epochs."""
_CHOICE = ("verdict", "used", "weight")
"""What a site has chosen and how it compares, which leaves only where the policy says so."""


def of_enough(
    metrics: Mapping[str, Any], policy: SitePolicy, judges: int, *, trained: int, chooses: bool, loss: bool
) -> dict[str, Any]:
    """An answer's numbers with measures of what rests on enough patients, where the policy wants them coarse.

    Measures that cannot be made again so are None.

    Args:
        metrics: of one answer, as the site's own code made it.
        policy: the site's.
        judges: patients of the validation data. Of fewer than enough nothing is told of their cases.
        trained: patients of the training data, by their known labels. Of fewer, who may train where no update leaves,
            nothing is told either.
        chooses: by them the site chose what it uses. What fewer than enough have chosen is not told, nor then how it
            compares.
        loss: the task's loss rests on whole cases, so that enough patients' mean tells of none; else it is not told.
    """
    if policy.measures != "coarse" or not policy.least_patients:
        return dict(metrics)

    def told(value: Any) -> Any:
        if isinstance(value, list):
            return [told(v) for v in value]
        return value.told(policy.least_patients) if isinstance(value, Measured) else None

    found = {name: told(v) if name in (*_MEASURED, "alone_validation") else v for name, v in metrics.items()}
    if "test" in found:
        found["test"] = {which: told(v) for which, v in found["test"].items()}
    if isinstance(numbers := found.get("numbers"), Measured):
        found["numbers"] = told(numbers)
    if trained < policy.least_patients:
        found |= {name: None for name in ("train_loss", "numbers") if name in found}
    few = chosen_by_few(policy, judges)
    if "selecting" in found and few:
        found["selecting"] = None
    if "validation_loss" in found and (few or not loss):
        found["validation_loss"] = None
    if chooses and few:
        found = {name: value for name, value in found.items() if name not in _CHOICE}
    if found.get("verdict"):
        found["verdict"] = found["verdict"] | {name: told(found["verdict"][name]) for name in ("alone", "gain")}
    return found


def chosen_by_few(policy: SitePolicy, judges: int) -> bool:
    """Whether what a site chooses by so many validation patients is not told, nor then how it compares."""
    return policy.measures == "coarse" and judges < policy.least_patients


def coarsened(metrics: Mapping[str, Any], policy: SitePolicy) -> dict[str, Any]:
    """An answer's numbers as the policy lets them leave; those that left so already stay as they are.

    Args:
        metrics: of one answer, as :mod:`medpfl.core.answers` has them.
        policy: the site's.
    """
    kept = dict(metrics) if policy.verdict else _without_rival(metrics)
    if policy.measures == "full":
        return kept
    found: dict[str, Any] = {}
    for name, value in kept.items():
        if name in _EPOCH and isinstance(value, list):
            # Of every epoch of a site that joins they would be as many questions in one, by weights of the server's.
            told = (0, kept[_EPOCH[name]])
            found[name] = [_coarse(v, policy) if epoch in told else None for epoch, v in enumerate(value)]
        elif name in _MEASURED:
            found[name] = _coarse(value, policy)
        elif name == "test":
            found[name] = {which: _coarse(v, policy) for which, v in value.items()}
        elif name == "verdict":
            if value is not None and (alone := _coarse(value["alone"], policy)) is not None:
                gain = value["gain"] and {k: _rounded_within(v) for k, v in value["gain"].items() if k not in NAMES}
                found[name] = {**_rounded_within(value), "alone": alone, "gain": gain}
        elif name == "weight":
            found[name] = None if policy.measures == "none" else _rounded_weight(value)
        elif name == "selecting":
            found[name] = _coarse_cases(value, policy)
        elif name == "validation_loss":
            if value is not None and _coarse(kept.get("validation"), policy) is not None:
                found[name] = round(min(value, _MOST_LOSS), 1)
        elif name == "samples":
            found[name] = {part: _tens(n, least=TENS if part == "train" else 0) for part, n in value.items()}
        elif name == "numbers":
            found[name] = None if policy.measures == "none" or value is None else _rounded_within(value)
        elif name == "train_loss":
            found[name] = None if policy.measures == "none" or value is None else float(f"{min(value, _MOST_LOSS):.1g}")
        else:
            found[name] = value
    return found


def _without_rival(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says how training alone did; of a site that joins as where that diverged.

    Of the test nor the validation measures of what the site uses: beside those of the model that it received, of the
    same cases, they would say which of the two that is.
    """
    if "test" in metrics:
        metrics = {name: value for name, value in metrics.items() if name != "validation"}
    silent = {"alone": None, "alone_epoch": None, "alone_validation": []} if "alone" in metrics else {}
    return {name: value for name, value in metrics.items() if name not in _CHOICE} | silent


def coarse_seconds(seconds: float, policy: SitePolicy) -> float:
    """How long a task took, as the policy lets it leave."""
    return round(seconds, 3) if policy.measures == "full" else _rounded(seconds)


def _coarse(measures: Mapping[str, Any] | None, policy: SitePolicy) -> dict[str, Any] | None:
    if measures is None or policy.measures == "none" or measures["n"] < policy.least_patients:
        return None
    rounded = {k: _rounded_within(v) for k, v in measures.items() if k not in (*NAMES, "intervals")}
    rounded |= {k: [None] * len(v) for k, v in measures.items() if k.endswith(_EACH)}
    return rounded | {"n": _tens_below(measures["n"], policy)}


def _coarse_cases(selecting: Mapping[str, Any] | None, policy: SitePolicy) -> dict[str, Any] | None:
    """Only where the validation measures leave too: their shares say more than whether one class has nearly all."""
    if selecting is None or policy.measures == "none" or selecting["cases"] < policy.least_patients:
        return None
    return {"cases": _tens_below(selecting["cases"], policy), "majority": selecting["majority"]}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if not isinstance(value, float):
        return value
    # Of a length in millimetres the digits after the point would be further ones.
    return round(value, DIGITS) if abs(value) < 1 else float(f"{value:.{DIGITS}g}")


def _rounded_within(value: Any) -> Any:
    if isinstance(value, dict):
        return {n: _rounded_weight(v) if n == "weight" else _rounded_within(v) for n, v in value.items()}
    return _rounded(value)


def _rounded_weight(weight: float) -> float:
    """A little of a model is told as a little: none would say that a site which gains or loses uses its own alone."""
    least = 10.0**-DIGITS
    return weight if weight in (0, 1) else min(max(round(weight, DIGITS), least), 1 - least)


def _tens_below(number: int, policy: SitePolicy) -> int:
    """Fewer than 20, which reports warn of, it is afterwards too; and enough, for the next gate."""
    return max(TENS, policy.least_patients, number - number % TENS)


def _tens(number: int, least: int) -> int:
    return max(least, TENS * round(number / TENS))
