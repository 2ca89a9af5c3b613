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
    indices = [file.path for file in rest if file.reason.startswith(_KIND)]
    there = {str(file).lower() for file in files} if indices else set()
    found = ((index, _lacking(index, there)) for index in indices)
    return [(index, words) for index, words in found if words]


def _lacking(index: Path, there: Collection[str]) -> str | None:
    """None where all are there, or it cannot be read; media write its names in another case than some file systems.

    Args:
        index: the DICOMDIR.
        there: the paths of all files, in lower case.
    """
    try:
        with quiet():
            records = dcmread(index).DirectoryRecordSequence
            named = [_parts(record.ReferencedFileID) for record in records if record.get("ReferencedFileID")]
    except Exception:  # pydicom raises errors of many kinds on damaged files; without the index nothing is lost
        return None
    gone = [parts for parts in named if str(index.parent.joinpath(*parts)).lower() not in there]
    if not gone:
        return None
    first = "/".join(gone[0])
    return f"names {len(named):,} files of which {len(gone):,} are not there, {first} first: was all copied?"


def _parts(name: object) -> list[str]:
    return [name] if isinstance(name, str) else [str(part) for part in name]
