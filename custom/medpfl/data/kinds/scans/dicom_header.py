"""One DICOM file's header, and whether its pixels are all there; nothing is decoded."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import IO, Any

from pydicom import Dataset, dcmread
from pydicom.errors import InvalidDicomError
from pydicom.pixels import get_decoder
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian

from medpfl.core.errors import first_line
from medpfl.core.quiet import quiet
from medpfl.data.dicom_words import modality, patient_id
from medpfl.data.kinds.scans.no_slice import NoSlice, damaged, without_preamble
from medpfl.data.kinds.scans.preprocessing import MODALITIES

_TAGS = [
    "SOPClassUID", "ImageType", "Modality", "Manufacturer", "ConvolutionKernel", "PatientID", "SeriesInstanceUID",
    "InstanceNumber", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "Rows",
    "Columns", "SamplesPerPixel", "NumberOfFrames", "BitsAllocated", "RescaleSlope", "RescaleIntercept", "RescaleType",
    "StudyDate", "SeriesDescription", "ModalityLUTSequence", "PixelRepresentation", "PixelPaddingValue",
    "PixelPaddingRangeLimit",
]  # fmt: skip
_ENHANCED = tuple(f"1.2.840.10008.5.1.4.1.1.{end}" for end in ("2.1", "2.2", "4.1", "4.3", "4.4"))
"""SOP classes of multi-frame CT and MR."""
_REMEDY = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, or convert the series"


@dataclass(frozen=True)
class Header:
    """What a slice's file says; lengths in mm, None for what is not there.

    Attributes:
        position: centre of the first voxel, in the patient's LPS coordinates.
        orientation: unit vectors along a row and along a column.
        pixel_spacing: distance of rows, distance of columns.
        rescaling: slope and intercept: HU are stored values, times the one, plus the other; None without both.
        padding: the least and the highest rescaled value that stand for no measurement; None where none do.
        date: of the study, as YYYYMMDD.
        problem: what makes this file useless on its own, in words.
    """

    path: Path
    uid: str
    patient: str
    modality: str
    localizer: bool
    multi_frame: bool
    instance: int | None
    position: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    pixel_spacing: tuple[float, ...] | None
    thickness: float | None
    matrix: tuple[int, int]
    rescaling: tuple[float, float] | None
    padding: tuple[float, float] | None
    unit: str
    manufacturer: str
    kernel: str
    description: str
    date: str
    problem: str | None


def read_header(path: Path) -> Header | NoSlice:
    """A file's header, or why it is no slice; never raises for a file that is wrong."""
    try:
        with open(path, "rb") as file, quiet():
            dataset = dcmread(file, stop_before_pixels=True, specific_tags=_TAGS)
            if _no_image(dataset):
                kind = UID(str(dataset.file_meta.MediaStorageSOPClassUID))
                words = f"{kind.name}, no image"
                return NoSlice(path, words, "other", patient=patient_id(dataset), sop_class=kind)
            if reason := _unusable(dataset):
                other = (modality(dataset) or "CT") not in MODALITIES  # no slice of a volume is lost with it
                uid = str(dataset.get("SeriesInstanceUID") or "")
                return NoSlice(path, reason, "stray" if other else "lost", uid)
            return _header(path, dataset, _problem(file, dataset))
    except InvalidDicomError:
        return without_preamble(path)
    except OSError as error:
        return NoSlice(path, f"cannot be read: {error.strerror or error}", "lost")
    except Exception as error:  # pydicom raises errors of many kinds on damaged headers.
        return damaged(path, f"cannot be read as DICOM, damaged or cut short: {first_line(error)}")


def _unusable(dataset: Dataset) -> str | None:
    """Why an image belongs to no series."""
    if not dataset.get("Rows") or not dataset.get("Columns"):
        return "a DICOM file without Rows and Columns: its image has been taken out, or it is cut short in its header"
    if dataset.get("SeriesInstanceUID"):
        return None
    if "SeriesInstanceUID" in dataset:
        return "SeriesInstanceUID is blank, so nobody can tell which series it belongs to: has anonymising removed it?"
    return "has no SeriesInstanceUID, so nobody can tell which series it belongs to"


def _no_image(dataset: Dataset) -> bool:
    """Reports, contours, a DICOMDIR; but not an image that has lost its Rows."""
    stored = UID(str(dataset.file_meta.get("MediaStorageSOPClassUID") or ""))
    if dataset.get("Rows") or not stored:
        return False
    # A class that pydicom cannot name may be private, or the first half of an image's.
    known = stored.name != stored or dataset.get("SOPClassUID") == stored
    return known and "Image Storage" not in stored.name


def _header(path: Path, dataset: Dataset, problem: str | None) -> Header:
    frames = int(dataset.get("NumberOfFrames") or 1)
    thickness, instance = _number(dataset.get("SliceThickness")), _number(dataset.get("InstanceNumber"))
    kernel = dataset.get("ConvolutionKernel") or ""
    return Header(
        path=path,
        uid=str(dataset.SeriesInstanceUID),
        patient=patient_id(dataset),
        modality=modality(dataset),
        localizer="LOCALIZER" in (dataset.get("ImageType") or ()),
        multi_frame=frames > 1 or dataset.get("SOPClassUID") in _ENHANCED,
        instance=None if instance is None else int(instance),
        position=_numbers(dataset.get("ImagePositionPatient"), 3),
        orientation=_numbers(dataset.get("ImageOrientationPatient"), 6),
        pixel_spacing=_numbers(dataset.get("PixelSpacing"), 2),
        thickness=thickness if thickness and thickness > 0 else None,
        matrix=(int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0)),
        rescaling=_rescaling(dataset),
        padding=_padding(dataset),
        unit=str(dataset.get("RescaleType") or "HU"),
        manufacturer=str(dataset.get("Manufacturer") or ""),
        kernel=kernel if isinstance(kernel, str) else "/".join(kernel),
        description=str(dataset.get("SeriesDescription") or "").strip(),
        date=str(dataset.get("StudyDate") or ""),
        problem=problem,
    )


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """None also where a tag's type (VR) makes text of them: MONAI takes numbers alone."""
    if not isinstance(value, Sequence) or len(value) != count or not all(isinstance(v, Real) for v in value):
        return None
    numbers = tuple(map(float, value))
    return numbers if all(map(isfinite, numbers)) else None


def _number(value: Any) -> float | None:
    """None of what is no finite number, as 2,5 is none: what does not need it can do without it."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # nothing, text, or several
        return None
    return number if isfinite(number) else None


def _rescaling(dataset: Dataset) -> tuple[float, float] | None:
    slope, intercept = _number(dataset.get("RescaleSlope")), _number(dataset.get("RescaleIntercept"))
    return None if slope is None or intercept is None else (slope, intercept)


def padding_range(dataset: Dataset) -> tuple[int, int] | None:
    """The least and the highest stored value that PixelPaddingValue and PixelPaddingRangeLimit say; None without.

    Raises:
        ValueError: one of them is no number, or several.
    """
    value, limit = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
    if reason := _wrong_padding(dataset):
        raise ValueError(reason)
    if value is None:
        return None
    bits, signed = int(dataset.BitsAllocated), bool(dataset.PixelRepresentation)
    low, high = sorted(_stored(int(v), bits, signed) for v in (value, value if limit is None else limit))
    return low, high


def _stored(value: int, bits: int, signed: bool) -> int:
    """The number as the pixels have it: -2000 is often written as the unsigned 63536 beside signed pixels."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _padding(dataset: Dataset) -> tuple[float, float] | None:
    slope, intercept = _rescaling(dataset) or (1.0, 0.0)
    try:
        low, high = sorted(slope * value + intercept for value in padding_range(dataset) or ())
    except (AttributeError, TypeError, ValueError, OverflowError):  # there is none, or decoding says why
        return None
    return low, high


def _wrong_rescaling(dataset: Dataset) -> str | None:
    """What is wrong with slope and intercept where they are there, or that a table is in their place."""
    if dataset.get("ModalityLUTSequence"):
        return "has its values by a table (Modality LUT), which is not read: convert it to rescale slope and intercept"
    for name in ("RescaleSlope", "RescaleIntercept"):
        value = dataset.get(name)
        if name in dataset and value is None:
            return f"has a {name} without a value: has anonymising or a conversion removed it?"
        number = _number(value)
        if value is not None and (number is None or (name == "RescaleSlope" and not number)):
            return f"has the {name} {value}"
    return None


def _wrong_padding(dataset: Dataset) -> str | None:
    for name in ("PixelPaddingValue", "PixelPaddingRangeLimit"):
        value = dataset.get(name)
        if value is not None and _number(value) is None:
            return f"has the {name} {value}, where one number is due"
    return None


def _problem(file: IO[bytes], dataset: Dataset) -> str | None:
    """What is wrong with the pixels; the file stands where they begin."""
    syntax = dataset.file_meta.get("TransferSyntaxUID")
    samples = int(dataset.get("SamplesPerPixel") or 1)
    if samples != 1:
        return f"a picture with {samples} colours, not a slice of a volume (a screen capture?)"
    if reason := _wrong_rescaling(dataset) or _wrong_padding(dataset):
        return reason
    if syntax == DeflatedExplicitVRLittleEndian:
        return None  # Reading it has inflated it all, so it is complete.
    implicit, little = dataset.original_encoding
    order = "<" if little else ">"
    start = file.read(8 if implicit else 12)
    if len(start) < (8 if implicit else 12) or struct.unpack(order + "HH", start[:4]) != (0x7FE0, 0x0010):
        return "has no pixels: they have been taken out, or it is cut short"
    announced = struct.unpack(order + "L", start[-4:])[0]
    left = _bytes_left(file)
    if announced == 0xFFFFFFFF:
        return _undecodable(syntax) or (None if _fragments_complete(file, left) else "cut short within its pixels")
    bits = int(dataset.get("BitsAllocated") or 16)
    expected = -(-int(dataset.Rows) * int(dataset.Columns) * int(dataset.get("NumberOfFrames") or 1) * bits // 8)
    if (present := min(announced, left)) < expected:
        return f"cut short: {present:,} of {expected:,} bytes of pixels are there"
    return None


def _bytes_left(file: IO[bytes]) -> int:
    here = file.tell()
    left = file.seek(0, 2) - here
    file.seek(here)
    return left


def _undecodable(syntax: Any) -> str | None:
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        name = UID(str(syntax)).name or "nothing that its header names"
        return f"compressed as {name}, which pydicom cannot decode: convert the series"
    return (
        None if decoder.is_available else f"compressed as {syntax.name}, for which no decoder is installed: {_REMEDY}"
    )


def more_decoders(syntax: str) -> str:
    """What else can be installed for pixels in a transfer syntax, and what else helps; empty if nothing can be."""
    try:
        missing = " ".join(get_decoder(syntax).missing_dependencies)
    except NotImplementedError:
        return ""
    return _REMEDY if "pylibjpeg-libjpeg" in missing or "pylibjpeg-openjpeg" in missing else ""


def _fragments_complete(file: IO[bytes], left: int) -> bool:
    """Follows compressed pixels' fragments by their lengths to the delimiter at the end."""
    while left >= 8:
        group, element, length = struct.unpack("<HHL", file.read(8))
        left -= 8 + length
        if (group, element) == (0xFFFE, 0xE0DD):
            return True
        if (group, element) != (0xFFFE, 0xE000):
            return False
        file.seek(length, 1)
    return False
