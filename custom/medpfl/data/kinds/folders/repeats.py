"""Files that are there twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from medpfl.core.numbers_in_words import count
from medpfl.data.finding import Finding
from medpfl.data.kinds.folders.layout import Picture
from medpfl.data.kinds.folders.xray import is_dicom, pixel_hash, xray_size

_CHUNK = 1 << 14
T = TypeVar("T")


def repeated(centres: Mapping[str, Sequence[Picture]], classes: Sequence[str]) -> list[Finding]:
    """Warnings about pictures whose files have the same content: at two centres, in one, or in two classes.

    Files are compared by size first, then by a piece from their middle: few are read as a whole.
    """
    groups = same_content([p for pictures in centres.values() for p in pictures], lambda picture: picture.file)
    between: dict[tuple[str, str], list[tuple[Picture, Picture]]] = {}
    for group in groups:
        for one, other in pairwise(group):
            between.setdefault((one.centre, other.centre), []).append((one, other))
    return [Finding("warning", _in_words(pairs, classes)) for _, pairs in sorted(between.items())]


def _in_words(pairs: Sequence[tuple[Picture, Picture]], classes: Sequence[str]) -> str:
    one, other = pairs[0]
    more = f" (and {count(len(pairs) - 1, 'more pair')})" if len(pairs) > 1 else ""
    message = f"{one.file} and {other.file} have the same content{more}: training and test may share them"
    differ = Counter(tuple(sorted((a.label, b.label))) for a, b in pairs if a.target != b.target)
    if differ and one.labels is not None:
        message += f"; {differ.total():,} of them with other labels"
    elif differ:
        a, b = next(iter(differ))
        message += f"; {differ.total():,} of them in two classes, {classes[a]} and {classes[b]} first"
    return message


def same_content(these: Sequence[T], file_of: Callable[[T], Path]) -> list[list[T]]:
    """Those whose files have the same content, each group in the order given."""
    groups = [list(these)]
    for alike in (_size, _middle, _content):
        groups = [same for group in groups for same in _grouped(group, lambda one, key=alike: key(file_of(one)))]
    return groups


def _grouped(these: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for one in these:
        groups.setdefault(key(one), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def _size(file: Path) -> Hashable:
    return xray_size(file) if is_dicom(file) else file.stat().st_size


def _middle(file: Path) -> bytes:
    if is_dicom(file):  # its header may differ
        return b""
    with open(file, "rb") as opened:
        opened.seek(max(0, file.stat().st_size - _CHUNK) // 2)
        return hashlib.blake2b(opened.read(_CHUNK), digest_size=16).digest()


def _content(file: Path) -> bytes:
    if is_dicom(file):
        return pixel_hash(file)
    with open(file, "rb") as opened:
        digest = hashlib.blake2b(digest_size=16)
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.digest()
