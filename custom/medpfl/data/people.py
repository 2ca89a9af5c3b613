"""Patients whose names are written in two ways, or who are at two sites."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from medpfl.core.site_data import Part
from medpfl.data.finding import Finding
from medpfl.data.patients import Sample, by_person, person

_VISIT = "t|v|tp|fu|ses|session|scan|time|visit"
_NUMBER_AT_END = re.compile(rf"(.+)[_-](?:[1-9]\d?|(?:{_VISIT})[_-]?\d{{1,2}})", re.IGNORECASE)
"""Of a name as visits are numbered; 001 is rather a patient's number."""


def people(centres: Mapping[str, Sequence[Sample]]) -> list[Finding]:
    """What must be known of the patients of sites; an error where one is in different parts at two."""
    found = written_twice(centres)
    for one, other in meeting({centre: {person(s.patient) for s in samples} for centre, samples in centres.items()}):
        found += at_two(one, centres[one], other, centres[other])
    return found


def meeting(places: Mapping[str, Iterable[Any]]) -> list[tuple[str, str]]:
    """The pairs of places that have something in common, in their order; each place is looked through once.

    Args:
        places: by name what is there, each once.
    """
    where: dict[Any, list[str]] = {}
    for place, things in places.items():
        for thing in things:
            where.setdefault(thing, []).append(place)
    common = {pair for there in where.values() for pair in combinations(there, 2)}
    return [pair for pair in combinations(places, 2) if pair in common]


def written_twice(centres: Mapping[str, Sequence[Sample]]) -> list[Finding]:
    """Patients whose names are written in two ways at a site."""
    found = []
    for centre, samples in centres.items():
        if twice := [names for names in _spellings(samples) if names[1:]]:
            whose = some("patient", [repr(names[0]) for names in twice])
            together = "" if _divided(samples, twice) else ", and stay in one part"
            message = (
                f"{centre}: {whose} written {twice[0][1]!r} too: by names that differ in case, spaces or how accents "
                f"are written alone they are taken for one person{together}"
            )
            found.append(Finding("warning", message))
    return found


def at_two(
    one: str, of_one: Sequence[Sample], other: str, of_other: Sequence[Sample], known: Collection[str] = ()
) -> list[Finding]:
    """Patients by whose names samples are at two sites.

    A name may be the same in two hospitals by chance, so that is a warning, and an error where it is in different
    parts, as their tables say.

    Args:
        one: a site.
        of_one: its samples.
        other: another site.
        of_other: its.
        known: patients of whom something worse is said already.
    """
    first, second = by_person(of_one), by_person(of_other)
    there = {person(name): name for name in second}
    both = [(name, there[person(name)]) for name in sorted(first) if person(name) in there and name not in known]
    parts = [tuple({s.split for s in of if s.split} for of in (first[a], second[b])) for a, b in both]
    apart = [k for k, (here, elsewhere) in enumerate(parts) if here and elsewhere and here != elsewhere]
    found = []
    if apart:
        here, elsewhere = ("/".join(sorted(part)) for part in parts[apart[0]])
        remedy = "all that is of a patient must be in one part; if these are two people, name them differently"
        names = some("patient", [both[k][0] for k in apart])
        found.append(Finding("error", f"{names} in {here} of {one} and in {elsewhere} of {other}: {remedy}"))
    if alike := [name for k, (name, _) in enumerate(both) if k not in apart]:
        found.append(Finding("warning", f"{some('patient', alike)} in {one} and in {other}: is it the same person?"))
    return found


def _spellings(samples: Sequence[Sample]) -> list[list[str]]:
    names: dict[str, list[str]] = {}
    for name in sorted({sample.patient for sample in samples}):
        names.setdefault(person(name), []).append(name)
    return list(names.values())


def _divided(samples: Sequence[Sample], people: Sequence[Sequence[str]]) -> bool:
    """Whether one of some people, each a list of names, is in two of the parts that are given."""
    parts: dict[str, set[Part | None]] = {}
    for sample in samples:
        parts.setdefault(sample.patient, set()).add(sample.split)
    return any(len(set().union(*(parts[name] for name in names))) > 1 for names in people)


def numbered(names: Iterable[str]) -> list[list[str]]:
    """Names that differ in a number at the end alone, as those of visits do, unless all are called so.

    >>> numbered(["a_1", "a_2", "b_t0", "b_t1", "c"])
    [['a_1', 'a_2'], ['b_t0', 'b_t1']]
    """
    every = sorted(set(names))
    by_stem: dict[str, list[str]] = {}
    for name in every:
        if found := _NUMBER_AT_END.fullmatch(name):
            by_stem.setdefault(found[1], []).append(name)
    return [alike for alike in by_stem.values() if 1 < len(alike) < len(every)]


def some(what: str, names: Sequence[str]) -> str:
    """``patient P1 (and 2 more like it) is``."""
    more = len(names) - 1
    return f"{what} {names[0]}" + (f" (and {more:,} more like it)" if more else "") + " is"
