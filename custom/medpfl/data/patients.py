"""Divides a centre's patients into training, validation and test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Protocol, TypeVar

import numpy as np

from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.seeding import derive_seed
from medpfl.core.site_data import PARTS, Part
from medpfl.data.files import composed
from medpfl.data.split import require_fractions, require_train_fraction

_WITH_VALIDATION = ((0.4, 0.2, 0.4), (0.4, 0.3, 0.3), (0.34, 0.33, 0.33))
"""Fractions that give more to validation than the default, the nearest first."""
SPELT_TWICE = (
    "their names differ in case, spaces or how accents are written alone: call one person the same, or two otherwise"
)
"""Of one :func:`person` by two names, in two parts."""


class Sample(Protocol):
    """What is divided, a dataclass: a scan or a picture."""

    @property
    def patient(self) -> str:
        """Whose it is."""

    @property
    def label(self) -> int:
        """Index of the class."""

    @property
    def split(self) -> Part | None:
        """The part that it is given to, or None."""

    @property
    def id(self) -> str:
        """Distinguishes the samples of a patient."""


S = TypeVar("S", bound=Sample)


def person(name: str) -> str:
    """The same for names that differ in case, spaces or how accents are written alone."""
    return "".join(composed(name).casefold().split())


def by_person(samples: Sequence[S]) -> dict[str, list[S]]:
    """Samples by patient; of names that are the same :func:`person` by the first of them."""
    called = _called(samples)
    found: dict[str, list[S]] = {}
    for sample in samples:
        found.setdefault(called[sample.patient], []).append(sample)
    return found


def named_alike(samples: Sequence[S]) -> list[S]:
    """Samples in their order, each person's by the name that :func:`by_person` has."""
    called = _called(samples)
    return [_named(sample, called[sample.patient]) for sample in samples]


def count_people(samples: Iterable[Sample]) -> int:
    """How many people samples are of, whatever the spelling."""
    return len({person(sample.patient) for sample in samples})


def _called(samples: Iterable[Sample]) -> dict[str, str]:
    """By a patient's name the first, in their order, of those that are the same person's."""
    first: dict[str, str] = {}
    return {name: first.setdefault(person(name), name) for name in sorted({sample.patient for sample in samples})}


def split_patients(
    samples: Sequence[S], fractions: Sequence[float], train_fraction: float, seed: int, centre: str
) -> dict[Part, list[S]]:
    """Divides by patient, so that no part knows another part's patients, and alike within each class.

    Names that differ in case, spaces or how accents are written alone are one patient's, by the first of them.

    A patient's class is that of most of the samples, the higher one of as many. Within a class the parts' sizes are the
    fractions by largest remainder; what rounding gave or took, one patient at most, is carried to the next class, so
    that the whole fits too. A class with two patients or more has at least one in training and one in test, where their
    fractions are not 0; the only patient of a class is for training. Splits that the table gives are kept as they are.

    Args:
        samples: of one centre.
        fractions: shares for training, validation and test; what they leave of 1 is not used.
        train_fraction: share of the training patients that is kept, at least one; classes in turn, and a smaller
            share is part of a larger one. Validation and test do not depend on it.
        seed: the run's seed.
        centre: makes each centre's shuffling its own.

    Returns:
        The samples of each part, by patient and id.

    Raises:
        UserError: fractions that make no sense, or a patient whom the table gives to two parts.
    """
    require_fractions(fractions)
    require_train_fraction(train_fraction)
    by_patient = by_person(samples)
    order = np.random.default_rng(derive_seed(seed, centre, "split")).permutation(sorted(by_patient))
    classes: dict[int, list[str]] = {}
    for patient in order.tolist():
        classes.setdefault(class_of(by_patient[patient]), []).append(patient)
    given = any(sample.split for sample in samples)
    parts = _given(by_patient, classes) if given else _drawn(classes, fractions)
    parts["train"] = _some(parts["train"], train_fraction)
    return {
        part: sorted(
            (_named(sample, p) for patients in parts[part].values() for p in patients for sample in by_patient[p]),
            key=lambda sample: (sample.patient, sample.id),
        )
        for part in PARTS
    }


def _named(sample: S, patient: str) -> S:
    return sample if sample.patient == patient else replace(sample, patient=patient)


def set_aside(
    parts: Mapping[Part, Sequence[S]], share: float, seed: int, centre: str
) -> tuple[dict[Part, Sequence[S]], list[S]]:
    """The parts without a share of the training samples, rounded down, and these, which no site then has.

    Args:
        parts: of :func:`split_patients`.
        share: of the training samples.
        seed: the run's seed.
        centre: makes each centre's choice its own.
    """
    training = parts["train"]
    rng = np.random.default_rng(derive_seed(seed, centre, "holdout"))
    aside = set(rng.permutation(len(training))[: int(share * len(training) + 1e-9)].tolist())
    kept = [sample for row, sample in enumerate(training) if row not in aside]
    return {**parts, "train": kept}, [training[row] for row in sorted(aside)]


def no_validation(samples: Sequence[S], parts: Mapping[Part, Sequence[S]], centre: str, by: str) -> list[str]:
    """What follows where a centre with several patients has no validation case, and which fractions give one.

    Args:
        samples: of the centre.
        parts: what :func:`split_patients` made of them.
        centre: its name.
        by: what divided them, in words.
    """
    patients = count_people(samples)
    if parts["validation"] or patients < 2:
        return []
    follows = (
        f"{patients:,} patients and no validation case by {by}: rounds are selected without this site, and what it "
        "uses with FedBlend falls back to training alone"
    )
    if any(sample.split for sample in samples):
        return [follows]
    for shares in _WITH_VALIDATION:
        if all(split_patients(samples, shares, 1.0, 0, centre).values()):
            return [f"{follows}; --fractions {','.join(f'{share:g}' for share in shares)} gives it one"]
    return [f"{follows}; no --fractions gives it one beside training and test: that takes more patients"]


def in_numbers(parts: Mapping[Part, Sequence[Sample]]) -> str:
    """How many samples each part has, and of how many patients where they are fewer."""

    def number(part: Part) -> str:
        people = len({sample.patient for sample in parts[part]})
        whose = f" of {count(people, 'patient')}" if people < len(parts[part]) else ""
        return f"{part} {len(parts[part]):,}{whose}"

    return ", ".join(map(number, PARTS))


def class_of(samples: Sequence[Sample]) -> int:
    """A patient's class: that of most of the samples, the higher one of as many."""
    counts = Counter(sample.label for sample in samples)
    return max(counts, key=lambda label: (counts[label], label))


def _given(
    by_patient: Mapping[str, Sequence[Sample]], classes: dict[int, list[str]]
) -> dict[Part, dict[int, list[str]]]:
    parts: dict[Part, dict[int, list[str]]] = {part: {} for part in PARTS}
    for label, patients in classes.items():
        for patient in patients:
            splits = {sample.split for sample in by_patient[patient]}
            if len(splits) > 1 or None in splits:
                raise UserError(_in_two_parts(patient, by_patient[patient]))
            parts[splits.pop()].setdefault(label, []).append(patient)
    return parts


def _in_two_parts(patient: str, samples: Sequence[Sample]) -> str:
    of_name = {name: {s.split for s in samples if s.patient == name} for name in sorted({s.patient for s in samples})}
    if len(of_name) > 1 and all(len(splits) == 1 for splits in of_name.values()):
        (first, (one,)), (second, (other,)) = next(
            pair for pair in combinations(of_name.items(), 2) if pair[0][1] != pair[1][1]
        )
        return f"patient {first!r} is in {one} and {second!r} in {other}, and {SPELT_TWICE}"
    each = {sample.split: sample.id for sample in reversed(samples)}
    splits = sorted(each, key=str)
    named, ids = " and ".join(map(str, splits)), " and ".join(each[split] for split in splits)
    return f"patient {patient} is in {named} ({ids}): all that is of one patient must be in one part"


def _drawn(classes: dict[int, list[str]], fractions: Sequence[float]) -> dict[Part, dict[int, list[str]]]:
    parts: dict[Part, dict[int, list[str]]] = {part: {} for part in PARTS}
    shares = np.array([*fractions, max(0.0, 1 - sum(fractions))])
    carried = np.zeros(4)
    for label, patients in sorted(classes.items()):
        wanted = shares * len(patients) + carried
        sizes = _sizes(wanted, len(patients), shares)
        carried = wanted - sizes
        carried /= max(1.0, np.abs(carried).max())  # of small classes more may add up than one class should bear
        ends = np.cumsum(sizes)
        for part, stop, size in zip(PARTS, ends, sizes, strict=False):
            parts[part][label] = patients[stop - size : stop]
    return parts


def _sizes(wanted: np.ndarray, total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers near ``wanted``, for training, validation, test and unused, that sum to ``total``."""
    if total == 1:
        return np.array([1, 0, 0, 0])
    sizes = np.clip(np.floor(wanted + 1e-9), 0, None).astype(int)
    while (left := total - sizes.sum()) != 0:
        behind = np.where(shares > 1e-9, wanted - sizes, -np.inf if left > 0 else 0)
        if left < 0:
            behind = np.where(sizes > 0, behind, np.inf)
        # Differences of rounding must not decide a tie.
        at = int(np.round(behind, 9).argmax() if left > 0 else np.round(behind, 9).argmin())
        sizes[at] += 1 if left > 0 else -1
    for part in (0, 2):
        if sizes[part] == 0 and shares[part] > 0:
            donors = np.where(np.arange(4) == 2 - part, sizes - 1, sizes)
            sizes[int(donors.argmax())] -= 1
            sizes[part] = 1
    return sizes


def _some(classes: dict[int, list[str]], share: float) -> dict[int, list[str]]:
    """The first ``share`` of the patients, classes in turn, in proportion to their sizes."""
    ranked = sorted(
        (rank / len(patients), label, patient)
        for label, patients in classes.items()
        for rank, patient in enumerate(patients)
    )
    kept = {patient for _, _, patient in ranked[: max(1, int(share * len(ranked) + 1e-9))]}
    return {label: [p for p in patients if p in kept] for label, patients in classes.items()}
