"""As many training pictures of each class as a paper prints for each centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from medpfl.core.errors import UserError
from medpfl.core.seeding import derive_seed
from medpfl.core.site_data import PARTS, Part
from medpfl.data.kinds.folders.layout import Layout, Picture
from medpfl.data.kinds.folders.picture_file import Reading

Count = Annotated[int, Field(ge=0, le=10**7)]


class FolderReading(Reading):
    """How a folder is read and divided.

    Attributes:
        train_counts: by centre, how many pictures of each class train, in the order of the classes; empty where
            ``--fractions`` say it.
    """

    train_counts: Mapping[str, tuple[Count, ...]] = Field(default_factory=dict)


def require_countable(layout: Layout, train_counts: Mapping[str, Sequence[int]], held_out: Sequence[str]) -> None:
    """UserError, in words, where counts cannot be met or name no centre that trains."""
    if not train_counts:
        return
    argument, centres = "--data-arg train_counts", [name for name in layout.centres if name not in held_out]
    if layout.people:
        raise UserError(
            f"{argument}: patients are known, and all of a patient's pictures are in one part; leave it out"
        )
    if layout.several:
        raise UserError(f"{argument}: {layout.root} has several labels a picture; leave it out")
    if odd := set(train_counts) ^ set(centres):
        raise UserError(f"{argument}: {min(odd)}: give each centre that trains: {', '.join(centres)}")
    for centre, counts in train_counts.items():
        there = layout.counts(layout.centres[centre])
        if len(counts) != len(there):
            raise UserError(f"{argument}: {centre}: {len(counts)} numbers; there are {len(there)} classes")
        for name, count, known in zip(layout.classes, counts, there, strict=True):
            if count > known:
                raise UserError(f"{argument}: {centre}: {count} of class {name}; there are {known}")
        if not sum(counts):
            raise UserError(f"{argument}: {centre}: no picture is left to train on")


def split_by_counts(
    pictures: Sequence[Picture], counts: Sequence[int], fractions: Sequence[float], seed: int, centre: str
) -> dict[Part, list[Picture]]:
    """A centre's parts with so many training pictures of each class, drawn at random.

    The others of a class are for validation and test in the proportion of their fractions, rounded down for validation.

    Args:
        pictures: of the centre; every one stands for itself.
        counts: by class.
        fractions: shares for training (which counts for nothing), validation and test.
        seed: the run's seed.
        centre: makes each centre's shuffling its own.
    """
    order = np.random.default_rng(derive_seed(seed, centre, "split")).permutation(len(pictures))
    judged = fractions[1] + fractions[2]
    parts: dict[Part, list[int]] = {part: [] for part in PARTS}
    for label, count in enumerate(counts):
        rows = [int(row) for row in order if pictures[row].label == label]
        rest = rows[count:]
        cut = int(len(rest) * (fractions[1] / judged) + 1e-9) if judged else len(rest)
        parts["train"] += rows[:count]
        parts["validation"] += rest[:cut] if judged else []
        parts["test"] += rest[cut:]
    return {part: [pictures[row] for row in sorted(rows)] for part, rows in parts.items()}
