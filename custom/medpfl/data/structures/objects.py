"""DICOM objects that hold drawn structures: which there are in a folder, and what they call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydicom import Dataset, dcmread

from medpfl.core.errors import UserError, first_line
from medpfl.core.quiet import quiet
from medpfl.data.dicom_words import patient_id

RTSTRUCT, SEGMENTATION = "1.2.840.10008.5.1.4.1.1.481.3", "1.2.840.10008.5.1.4.1.1.66.4"
LABEL_MAP = "1.2.840.10008.5.1.4.1.1.66.7"
"""SOP classes: RT structure set, segmentation, label map segmentation."""
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
        patient: PatientID.
        date: of the object, as YYYYMMDD; empty if it does not say.
        structures: their names by number; numbers are ROINumber or SegmentNumber.
    """

    path: Path
    kind: str
    series: str
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
        return Drawn(
            path=path,
            kind=kind,
            series=_series(dataset),
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


def _structures(dataset: Dataset) -> dict[int, str]:
    if rois := dataset.get("StructureSetROISequence"):
        return {int(roi.ROINumber): str(roi.get("ROIName") or roi.ROINumber).strip() for roi in rois}
    segments = dataset.get("SegmentSequence") or ()
    # A label map may name the background, which is no structure.
    told = {int(one.SegmentNumber): str(one.get("SegmentLabel") or one.SegmentNumber).strip() for one in segments}
    return {number: name for number, name in told.items() if number}


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
