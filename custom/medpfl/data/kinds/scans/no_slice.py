"""Files that are no slices of a series: what they are instead, and whether one that was a slice is lost."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydicom import Dataset, dcmread
from pydicom.filereader import read_partial
from pydicom.tag import BaseTag
from pydicom.uid import UID

from medpfl.data.files import DICOM

EMPTY = "0 bytes"
"""The reason why a file without content is none."""
_HEAD = 1 << 16
_SERIES = 0x0020000E
_MAGIC = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\x1f\x8b": "compressed with gzip: unpack it, or call it .nii.gz if it is NIfTI",
    b"%PDF": "a PDF document",
    b"NRRD": "NRRD, not DICOM",
    b"Rar!": "a RAR archive: unpack it",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"\x7fELF": "a program",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"BM": "a BMP picture",
}


@dataclass(frozen=True)
class NoSlice:
    """A file that is no slice of a series.

    Attributes:
        path: where it is.
        reason: what it is, or what is wrong with it.
        what: ``other`` if it is recognisably something else; ``stray`` if it is so, but called like DICOM; ``lost``
            if it is, or may have been, a slice.
        series: SeriesInstanceUID, where it can be read.
        patient: PatientID of a DICOM object without an image.
        sop_class: its SOPClassUID.
    """

    path: Path
    reason: str
    what: Literal["other", "stray", "lost"]
    series: str = ""
    patient: str = ""
    sop_class: str = ""


def counted(files: Sequence[NoSlice], most: int = 4) -> str:
    """Reasons, each once with the number of files that it holds for and the first of them; the most frequent first."""
    reasons = Counter(file.reason for file in files)
    first = {file.reason: file.path.name for file in reversed(files)}
    said = [
        f"{first[reason]}: {reason}" if count == 1 else f"{count:,} files, {first[reason]} first: {reason}"
        for reason, count in reasons.most_common(most)
    ]
    return "; ".join(said) + (f"; and {len(reasons) - most} more reasons" if len(reasons) > most else "")


def without_preamble(path: Path) -> NoSlice:
    """What a file is that does not begin as DICOM files do."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    stray = "stray" if path.suffix.lower() in DICOM else "other"
    if not head:
        return NoSlice(path, EMPTY, "lost" if stray == "stray" else "other")
    if (dataset := _bare(head)) is not None:
        series = str(dataset.get("SeriesInstanceUID") or "")
        sop_class = UID(str(dataset.get("SOPClassUID") or ""))
        kind = sop_class.name
        if dataset.get("Rows") or "Image Storage" in kind:
            remedy = "export it again as DICOM files (Part 10)"
            return NoSlice(path, f"a DICOM image without preamble and file meta information: {remedy}", "lost", series)
        if kind:
            return NoSlice(path, f"{kind} without preamble, no image", "other", sop_class=sop_class)
    for magic, words in _MAGIC.items():
        if head.startswith(magic):
            return NoSlice(path, words, stray)
    if head[344:347] in (b"n+1", b"ni1") or head[:4] in (b"\x5c\x01\0\0", b"\0\0\x01\x5c"):
        return NoSlice(path, "NIfTI or Analyze, not DICOM", stray)
    if _is_text(head[:4096]):
        return NoSlice(path, "a text file", stray)
    return NoSlice(path, "not DICOM: damaged, or another format", "lost" if stray == "stray" else "other")


def damaged(path: Path, reason: str) -> NoSlice:
    """A DICOM file that cannot be read to its end, with its series where that much of it can be."""
    try:
        with open(path, "rb") as file:
            dataset = read_partial(file, _behind_series, specific_tags=[_SERIES])
            series = str(dataset.get("SeriesInstanceUID") or "")
    except Exception:  # pydicom raises errors of many kinds on damaged headers; the first is the reason.
        series = ""
    return NoSlice(path, reason, "lost", series)


def _behind_series(tag: BaseTag, vr: str | None, length: int) -> bool:
    return tag > _SERIES


def _bare(head: bytes) -> Dataset | None:
    """The data set of a file without preamble; None if it does not begin like one."""
    if len(head) < 8 or {struct.unpack(order, head[:2])[0] for order in ("<H", ">H")}.isdisjoint({2, 8}):
        return None
    try:
        tags = ["SOPClassUID", "SeriesInstanceUID", "Rows"]
        return dcmread(io.BytesIO(head), force=True, stop_before_pixels=True, specific_tags=tags)
    except Exception:  # whatever it is, it is no data set
        return None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8", errors="strict" if len(head) < 4096 else "ignore")
    except UnicodeDecodeError:
        return False
    return sum(c.isprintable() or c.isspace() for c in text) > 0.95 * len(text)
