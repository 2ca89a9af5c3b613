"""Splits that teach or show little, said before any training: parts of one class, or nearly so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.site_data import Part
from medpfl.tasks.selection import AUTO, LARGE, counted, in_words, selection
from medpfl.tasks.task import Task

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

JUDGED: tuple[Part, ...] = ("validation", "test")
"""The parts that models are judged by."""
_NAMED = 5


def judged_classes(labels: Mapping[Part, Iterable[int]], classes: int) -> dict[str, dict[str, int]]:
    """By part that models are judged by the number of cases of each class, as results have it."""
    counts = {part: np.bincount(np.fromiter(labels[part], dtype=int), minlength=classes) for part in JUDGED}
    return {part: {str(c): int(n) for c, n in enumerate(found)} for part, found in counts.items()}


def before_a_run(
    learned: Task, described: Mapping[str, Any], select_by: str = AUTO, *, mixes: bool = True
) -> list[str]:
    """What to say before a run that cannot teach, or whose figures will say little.

    Args:
        learned: the task.
        described: the ``data`` part of results.json; sites without numbers of classes by part are passed over.
        select_by: the run's.
        mixes: whether the sites' models reach each other.
    """
    alone = []
    if mixes and len(described.get("sites") or {}) == 1:
        alone = ["There is one site, whose model is mixed with no other: what it gains is its own training's."]
    amiss = masks_amiss(described) if learned.labels == "mask" else []
    return [*alone, *amiss, *_of_classes(learned, described, select_by, mixes)]


def masks_amiss(described: Mapping[str, Any]) -> list[str]:
    """What is odd with the classes that masks have.

    Args:
        described: the ``data`` part of results.json; sites without the number of images that have each class are passed
            over.
    """
    known = {name: site for name, site in (described.get("sites") or {}).items() if site.get("classes")}
    absent = [
        name
        for label, name in enumerate(described.get("classes") or ())
        if known and not any(site["classes"].get(str(label)) for site in known.values())
    ]
    words = []
    if absent:
        words.append(
            f"No mask at any site has the class {', '.join(absent)}: is a name too many, or are they in another order "
            "(--data-arg classes)?"
        )
    images = {name: sum(site[part] for part in ("train", *JUDGED)) for name, site in known.items()}
    full = {name: images[name] - n for name, site in known.items() if (n := site["classes"].get("0", 0)) < images[name]}
    if full:
        told = ", ".join(f"{n} of {images[name]} at {name}" for name, n in full.items())
        words.append(f"Masks without any background, as where they are inverted: {told}.")
    return words


def _of_classes(learned: Task, described: Mapping[str, Any], select_by: str, mixes: bool) -> list[str]:
    if not learned.one_class:
        return []
    known = {name: of for name, site in (described.get("sites") or {}).items() if (of := site.get("judged_classes"))}
    told = [counted(list(of["validation"].values())) for of in known.values()]
    classes = described.get("classes", ())
    words = in_words(learned, selection(learned, select_by, told), classes, mixes=mixes) if told else []
    single = {name: c for name, of in known.items() if (c := _only(of["test"])) is not None}
    if single:
        first = next(iter(single))
        which = classes[single[first]] if single[first] < len(classes) else single[first]
        names = ", ".join(list(single)[:_NAMED]) + (f" and {len(single) - _NAMED} more" if len(single) > _NAMED else "")
        words.append(
            f"At {len(single)} of {len(known)} sites ({names}) all test cases are of one class ({which} at {first}): "
            "how well a model tells classes apart will not be seen there."
        )
    return words


def require_test_cases(described: Mapping[str, Any], config: RunConfig) -> None:
    """UserError if it is known before a run that no site has a test case, and no centre is held out.

    Args:
        described: the ``data`` part of results.json.
        config: the run.
    """
    sites, scans = described["sites"].values(), "preprocessing" in described
    if not sites or described.get("held_out") or any(site["test"] for site in sites):
        return
    if config.official:
        remedy = "the data's own test part is empty: leave --official out, and --fractions divides all images"
    elif not config.fractions[2]:
        given = ",".join(f"{share:g}" for share in config.fractions)
        remedy = f"--fractions {given} leaves none: give test a share, e.g. 0.5,0.1,0.4"
    elif all(site.get("patients") == 1 for site in sites):
        if whose := config.data_args.get("patient"):
            each = f"by --data-arg patient={whose} each site has one patient, who trains"
            remedy = f"{each}: more patients are needed, or fewer --sites"
        else:
            remedy = "each site has one patient, who trains: more patients are needed, or fewer --sites"
            if Path(config.data).suffix.lower() != ".npz":
                remedy += "; --data-arg patient=... says whose a file is"
    elif all(_patients(site, scans=scans) in (1, 2) for site in sites):
        remedy = "each site has one or two patients, who train: more patients are needed"
    elif all(site["train"] == 1 for site in sites):
        remedy = "each site has one case, and trains on it: more cases are needed, or fewer --sites"
    elif config.partition == "natural" and (scans or "reading" in described):  # no --partition divides centres
        remedy = (
            "the parts that the data fix have none, or each class has too few cases to be divided: give data with "
            "test cases, or more of them"
        )
    else:
        remedy = (
            f"the parts that the data or --partition {config.partition} fix have none: give data with test cases, or "
            "a --partition whose sites --fractions divide, e.g. iid"
        )
    raise UserError(f"no site has a test case, so nothing would be measured; {remedy}")


def _patients(site: Mapping[str, Any], *, scans: bool) -> int | None:
    """A site's patients, as far as that is known; ``scans``: its numbers are of patients."""
    return sum(site[part] for part in ("train", *JUDGED)) if scans else site.get("patients")


def of_a_site(labels: Mapping[Part, Iterable[int]], classes: Sequence[str], by: str) -> list[str]:
    """The same of one hospital's own parts, for a check of its data.

    Args:
        labels: of each part's cases.
        classes: their names.
        by: what divided it, in words.
    """
    found = judged_classes(labels, len(classes))
    words = []
    if (only := _only(found["test"])) is not None:
        words.append(
            f"all test cases are of class {classes[only]} by {by}: how well a model tells classes apart will not "
            "be seen"
        )
    every = [sum(of) for of in zip(*(f.values() for f in found.values()), strict=True)]
    large = counted(every)["majority"]
    if only is None and large is not None:
        words.append(
            f"more than {LARGE:.0%} of validation and test cases are of class {classes[large]} by {by}: accuracy "
            "rewards a model that always says it, look at balanced accuracy"
        )
    return words


def _only(counts: Mapping[str, int]) -> int | None:
    there = [int(c) for c, n in counts.items() if n]
    return there[0] if len(there) == 1 else None
