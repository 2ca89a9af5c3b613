"""DICOM objects that hold drawn structures: which there are in a folder, and what they call them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydicom import Dataset, dcmread
from pydicom.uid import RTStructureSetStorage as RTSTRUCT
from pydicom.uid import SegmentationStorage as SEGMENTATION

from medpfl.core.errors import UserError, first_line
from medpfl.core.quiet import quiet
from medpfl.data.dicom_words import patient_id
from medpfl.data.files import composed

LABEL_MAP = "1.2.840.10008.5.1.4.1.1.66.7"
"""SOP class of a label map segmentation, which pydicom 3.0 has no name for."""
MALFORMED = (AttributeError, TypeError, ValueError, IndexError, KeyError)
"""What pydicom raises of an element that is not there, or has another value than DICOM gives it."""
KINDS = {RTSTRUCT: "RT structure set", SEGMENTATION: "segmentation", LABEL_MAP: "segmentation"}


@dataclass(frozen=True)
class Drawn:
    """A DICOM object with structures.

    Attributes:
        path: its file.
        kind: one of :data:`KINDS`' words.
        series: SeriesInstanceUID of what it is drawn on; empty if it does not say, or names several.
        images: SOPInstanceUIDs that its lines or frames name, where ``series`` is empty.
        patient: PatientID.
        date: of the object, as YYYYMMDD; empty if it does not say.
        structures: the names of what is drawn by number; numbers are ROINumber or SegmentNumber.
    """

    path: Path
    kind: str
    series: str
    images: frozenset[str]
    patient: str
    date: str
    structures: Mapping[int, str]


def read_drawn(path: Path) -> Drawn | None:
    """What structures a file has; None for one that is no DICOM object with structures.

    Raises:
        UserError: it is one, and cannot be read.
    """
    try:
        with quiet():
            kind = KINDS.get(str(dcmread(path, specific_tags=["SOPClassUID"], stop_before_pixels=True).SOPClassUID))
    except Exception:  # pydicom raises errors of many kinds on what is no DICOM file, or a damaged one
        return None
    if kind is None:
        return None
    dataset = whole(path, pixels=False)
    try:
        with quiet():  # values are converted where they are asked for
            series = _series(dataset)
            return Drawn(
                path=path,
                kind=kind,
                series=series,
                images=frozenset() if series else frozenset(_images(dataset)),
                patient=patient_id(dataset),
                date=str(dataset.get("StructureSetDate") or dataset.get("ContentDate") or ""),
                structures=_structures(dataset),
            )
    except MALFORMED as error:
        raise UserError(f"{path}: a {kind} that is not as DICOM has it: {first_line(error)}") from None


def whole(path: Path, *, pixels: bool = True) -> Dataset:
    """A file's content, with or without the pixels; UserError if it cannot be read."""
    try:
        with quiet():
            return dcmread(path, stop_before_pixels=not pixels)
    except Exception as error:  # pydicom raises errors of many kinds on damaged files
        raise UserError(f"{path}: cannot be read as DICOM: {first_line(error)}") from None


def instance(path: Path) -> str:
    """A slice's SOPInstanceUID; empty if it has none, or cannot be read any more."""
    try:
        with quiet():
            return str(dcmread(path, specific_tags=["SOPInstanceUID"], stop_before_pixels=True).SOPInstanceUID)
    except Exception:  # pydicom raises errors of many kinds on damaged files
        return ""


def _structures(dataset: Dataset) -> dict[int, str]:
    """Templates name structures that nobody has drawn, and a label map may name the background: these are left out."""
    if rois := dataset.get("StructureSetROISequence"):
        lines = dataset.get("ROIContourSequence") or ()
        told = [(int(roi.ROINumber), roi.get("ROIName")) for roi in rois]
        drawn = [int(roi.ReferencedROINumber) for roi in lines if roi.get("ContourSequence")]
    else:
        told = [(int(one.SegmentNumber), one.get("SegmentLabel")) for one in dataset.get("SegmentSequence") or ()]
        drawn = [number for number in dict(told) if number]
    for number, times in Counter([number for number, _ in told] + drawn).items():
        if times > 1 + (number in drawn):
            raise ValueError(f"the number {number} has more than one structure")
    return {number: composed(str(name or number).strip()) for number, name in told if number in drawn}


def _series(dataset: Dataset) -> str:
    named = [str(one.SeriesInstanceUID) for one in _named_series(dataset)]
    return named[0] if len(set(named)) == 1 else ""


def _named_series(dataset: Dataset) -> Sequence[Dataset]:
    if referenced := dataset.get("ReferencedSeriesSequence"):
        return referenced
    return [
        series
        for frame in dataset.get("ReferencedFrameOfReferenceSequence") or ()
        for study in frame.get("RTReferencedStudySequence") or ()
        for series in study.get("RTReferencedSeriesSequence") or ()
    ]


def _images(dataset: Dataset) -> Iterator[str]:
    """SOPInstanceUIDs of the images that lines or frames name."""
    for roi in dataset.get("ROIContourSequence") or ():
        for contour in roi.get("ContourSequence") or ():
            for image in contour.get("ContourImageSequence") or ():
                yield str(image.ReferencedSOPInstanceUID)
    for frame in dataset.get("PerFrameFunctionalGroupsSequence") or ():
        for made in frame.get("DerivationImageSequence") or ():
            for image in made.get("SourceImageSequence") or ():
                yield str(image.ReferencedSOPInstanceUID)
