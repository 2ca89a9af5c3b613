"""Whose a centre's scans or pictures are where its table names patients and the files have PatientIDs, both of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

from medpfl.core.site_data import Part
from medpfl.data.patients import Sample, person

Placed = tuple[Sample, str]
"""A sample, and where the table has it."""
S = TypeVar("S", bound=Sample)


def named_as_others(samples: Sequence[S], ids: Sequence[str], named: Sequence[bool]) -> list[S]:
    """Samples in their order, those that the table names no patient of by its name for others of their PatientID.

    Without that one person would be two, one called by the table and one by the PatientID. Where the table has several
    names for it nobody can tell which, and the PatientID stays.

    Args:
        samples: of one centre.
        ids: each one's PatientID, empty where there is none.
        named: whether the table has a patient for each.
    """
    names: dict[str, dict[str, str]] = {}
    for sample, ident, said in zip(samples, ids, named, strict=True):
        if ident and said:
            names.setdefault(person(ident), {}).setdefault(person(sample.patient), sample.patient)
    only = {ident: next(iter(of.values())) for ident, of in names.items() if len(of) == 1}
    called = [None if said else only.get(person(ident)) for ident, said in zip(ids, named, strict=True)]
    return [replace(one, patient=name) if name else one for one, name in zip(samples, called, strict=True)]


def two_names(samples: Sequence[Sample], ids: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Which PatientIDs are under several patients' names, in words: of those in different parts, and of the others.

    None where a centre has one PatientID alone, which is what anonymising makes of all. They are not refused: each of
    two scanners may have written one for all.

    Args:
        samples: of one centre.
        ids: each one's PatientID, empty where there is none.
        lines: where the table has each.
    """
    of_id: dict[str, dict[tuple[Part | None, str], Placed]] = {}
    for sample, ident, where in zip(samples, ids, lines, strict=True):
        if ident:
            placed, key = of_id.setdefault(person(ident), {}), (sample.split, person(sample.patient))
            if key not in placed and sum(split == sample.split for split, _ in placed) < 2:  # two names say it
                placed[key] = sample, where
    together, apart = [], []
    for placed in of_id.values() if len(of_id) > 1 else ():
        pairs = [pair for pair in combinations(placed, 2) if pair[0][1] != pair[1][1]]
        divided = [pair for pair in pairs if pair[0][0] != pair[1][0]]
        if pairs:
            one, other = (divided or pairs)[0]
            (apart if divided else together).append((placed[one], placed[other]))
    remedy = "if they are one person, call it the same, so that it is in one part"
    return [f"{words}: {remedy}" for pairs in (apart, together) for words in _first(pairs)]


def _first(pairs: Sequence[tuple[Placed, Placed]]) -> Iterator[str]:
    """The first pair; the others are counted."""
    for (first, there), (second, where) in pairs[:1]:
        here, before = (f" in {one.split}" if first.split != second.split else "" for one in (second, first))
        more = f" (and {len(pairs) - 1:,} more like it)" if pairs[1:] else ""
        of_first = f"{first.patient!r}{before} ({there})"
        yield f"{where}: patient {second.patient!r}{here} has the PatientID of {of_first}{more}"
