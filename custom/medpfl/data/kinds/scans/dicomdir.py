"""What a DICOMDIR, the index of an exported medium, names and is not there: the export was not copied as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from pydicom import dcmread

from medpfl.core.quiet import quiet
from medpfl.data.kinds.scans.no_slice import NoSlice

_KIND = "Media Storage Directory Storage"
"""What pydicom calls such an index."""


def incomplete(rest: Iterable[NoSlice], files: Collection[Path]) -> list[tuple[Path, str]]:
    """Each index of which something lacks, with how much, in words.

    Args:
        rest: files that are no slices.
        files: all that are there.
    """
    found = ((file.path, _lacking(file.path, files)) for file in rest if file.reason.startswith(_KIND))
    return [(index, words) for index, words in found if words]


def _lacking(index: Path, files: Collection[Path]) -> str | None:
    """None where all are there, or it cannot be read; media write its names in another case than some file systems."""
    try:
        with quiet():
            records = dcmread(index).DirectoryRecordSequence
            named = [_parts(record.ReferencedFileID) for record in records if record.get("ReferencedFileID")]
    except Exception:  # pydicom raises errors of many kinds on damaged files; without the index nothing is lost
        return None
    there = {tuple(map(str.lower, file.relative_to(index.parent).parts)) for file in files if _is_below(file, index)}
    gone = [parts for parts in named if tuple(map(str.lower, parts)) not in there]
    if not gone:
        return None
    first = "/".join(gone[0])
    return f"names {len(named):,} files of which {len(gone):,} are not there, {first} first: was all copied?"


def _parts(name: object) -> list[str]:
    return [name] if isinstance(name, str) else [str(part) for part in name]


def _is_below(file: Path, index: Path) -> bool:
    return index.parent in file.parents
