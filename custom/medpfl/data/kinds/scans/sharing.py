"""What the centres of one manifest must not have in common: scans, patients in different parts; and scans' copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from medpfl.core.numbers_in_words import count
from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.scan import Scan
from medpfl.data.labels import in_words
from medpfl.data.patients import person
from medpfl.data.people import at_two, meeting, some, written_twice

_MAY_SHARE = ": training and test may share them"


def shared(scans: Mapping[str, Sequence[Scan]]) -> list[Finding]:
    """Series and patients that are in two centres, one finding of each kind for two centres.

    A series (or file) in two centres is an error: one would be tested with what the other has trained on.
    """
    found = written_twice(scans)
    named = {centre: {*map(_key, of), *(person(scan.patient) for scan in of)} for centre, of in scans.items()}
    for one, other in meeting(named):
        found += _between(one, scans[one], other, scans[other])
    return found


def copies(marked: Iterable[tuple[Scan, str]], classes: Sequence[str]) -> list[Finding]:
    """Scans with the same content under two names, in one centre or in two.

    Args:
        marked: scans, each with what is the same for the same content.
        classes: names of the labels.

    Returns:
        An error for all that have different labels, a warning for the others: training and test may share them.
    """
    groups: dict[str, list[Scan]] = {}
    for scan, content in marked:
        groups.setdefault(content, []).append(scan)
    pairs = [pair for same in groups.values() for pair in pairwise(same) if pair[0].files != pair[1].files]
    found = []
    for level, chosen in (
        ("error", [(one, other) for one, other in pairs if one.target != other.target]),
        ("warning", [(one, other) for one, other in pairs if one.target == other.target]),
    ):
        if not chosen:
            continue
        one, other = chosen[0]
        more = f" (and {count(len(chosen) - 1, 'more pair')})" if len(chosen) > 1 else ""
        both = " and ".join(in_words(scan.target, classes) for scan in (one, other))
        labels, apart = (f" and different labels, {both}", "") if level == "error" else ("", _MAY_SHARE)
        places = f"{one.place} ({one.centre}) and {other.place} ({other.centre})"
        found.append(Finding(level, f"{places} have the same content{labels}{more}{apart}"))
    return found


def _between(one: str, of_one: Sequence[Scan], other: str, of_other: Sequence[Scan]) -> list[Finding]:
    found = []
    there = {_key(scan) for scan in of_other}
    if twice := [scan for scan in of_one if _key(scan) in there]:
        ids = [scan.id for scan in twice]
        found.append(Finding("error", f"{some('the series', ids)} in {one} and in {other}: a scan has one centre"))
    return found + at_two(one, of_one, other, of_other, {scan.patient for scan in twice})


def _key(scan: Scan) -> str:
    return scan.id if scan.kind == "dicom" else str(scan.files[0].resolve())
