"""RT structure sets and segmentation objects on small series, as other tools write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.pixels import pack_bits
from pydicom.sequence import Sequence as Items
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from medpfl.data.structures.objects import LABEL_MAP, RTSTRUCT, SEGMENTATION


def item(**fields: object) -> Dataset:
    """A data set of these elements."""
    dataset = Dataset()
    for name, value in fields.items():
        setattr(dataset, name, Items(value) if name.endswith("Sequence") else value)
    return dataset


def _file(kind: str, modality: str, patient: str, **fields: object) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = kind, ExplicitVRLittleEndian
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = kind, meta.MediaStorageSOPInstanceUID
    dataset.Modality, dataset.PatientID, dataset.SeriesInstanceUID = modality, patient, generate_uid()
    dataset.update(item(**fields))
    return dataset


def write_rtstruct(
    path: Path,
    series: str | Sequence[str],
    structures: Mapping[str, Sequence[Sequence[Sequence[float]]]],
    *,
    patient: str = "P1",
    geometric: str = "CLOSED_PLANAR",
) -> Path:
    """Writes lines by structure, each a list of corners (x, y, z) in mm; numbers are 1, 2, ... in their order."""
    named = [series] if isinstance(series, str) else series
    of_series = [item(SeriesInstanceUID=uid) for uid in named]
    frame = item(RTReferencedStudySequence=[item(RTReferencedSeriesSequence=of_series)])
    rois = [item(ROINumber=n, ROIName=name) for n, name in enumerate(structures, start=1)]
    drawn = [
        item(
            ReferencedROINumber=n,
            ContourSequence=[
                item(
                    ContourGeometricType=geometric,
                    NumberOfContourPoints=len(line),
                    ContourData=[f"{value:.10g}" for corner in line for value in corner],
                )
                for line in lines
            ],
        )
        for n, lines in enumerate(structures.values(), start=1)
    ]
    dataset = _file(
        RTSTRUCT,
        "RTSTRUCT",
        patient,
        StructureSetDate="20200102",
        ReferencedFrameOfReferenceSequence=[frame],
        StructureSetROISequence=rois,
        ROIContourSequence=drawn,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def write_segmentation(
    path: Path,
    slices: Sequence[Path],
    masks: Mapping[str, np.ndarray],
    *,
    kind: str = "BINARY",
    patient: str = "P1",
    cut: tuple[int, int] = (0, 0),
    change=lambda dataset: None,
) -> Path:
    """Writes a segment a mask.

    Args:
        path: where.
        slices: the series' files from the lowest on.
        masks: by name (slices, rows, columns): bool, or of ``FRACTIONAL`` from 0 to 1. Empty frames are left out.
        kind: BINARY, FRACTIONAL or LABELMAP.
        patient: whose it is.
        cut: rows and columns that are cut off above and on the left.
        change: called with the data set before it is written.
    """
    first = dcmread(slices[0])
    row, column = np.split(np.array(first.ImageOrientationPatient, float), 2)
    between_rows, between_columns = map(float, first.PixelSpacing)
    frames, groups = [], []
    numbered = list(enumerate(masks.values(), start=1))
    if kind == "LABELMAP":
        numbered = [(0, sum(n * mask.astype(np.uint8) for n, mask in numbered))]
    for number, mask in numbered:
        for file, values in zip(slices, mask, strict=True):
            if not values.any():
                continue
            frames.append(values[cut[0] :, cut[1] :])
            start = np.array(dcmread(file).ImagePositionPatient, float)
            start += cut[0] * between_rows * column + cut[1] * between_columns * row
            of_frame = {"PlanePositionSequence": [item(ImagePositionPatient=[round(float(v), 6) for v in start])]}
            if number:
                of_frame["SegmentIdentificationSequence"] = [item(ReferencedSegmentNumber=number)]
            groups.append(item(**of_frame))
    pixels = np.stack(frames)
    fields = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}
    if kind == "BINARY":
        fields = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}
        content = pack_bits(pixels.astype(np.uint8))
    else:
        content = (np.round(pixels * 200) if kind == "FRACTIONAL" else pixels).astype(np.uint8).tobytes()
    shared = item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=list(map(float, first.ImageOrientationPatient)))],
        PixelMeasuresSequence=[item(PixelSpacing=list(map(float, first.PixelSpacing)), SliceThickness=2.5)],
    )
    dataset = _file(
        LABEL_MAP if kind == "LABELMAP" else SEGMENTATION,
        "SEG",
        patient,
        ContentDate="20200102",
        SegmentationType=kind,
        ReferencedSeriesSequence=[item(SeriesInstanceUID=first.SeriesInstanceUID)],
        SegmentSequence=[item(SegmentNumber=n, SegmentLabel=name) for n, name in enumerate(masks, start=1)],
        SharedFunctionalGroupsSequence=[shared],
        PerFrameFunctionalGroupsSequence=groups,
        Rows=pixels.shape[1],
        Columns=pixels.shape[2],
        NumberOfFrames=len(pixels),
        SamplesPerPixel=1,
        PhotometricInterpretation="MONOCHROME2",
        PixelRepresentation=0,
        **fields,
    )
    if kind == "FRACTIONAL":
        dataset.MaximumFractionalValue = 200
    dataset.PixelData = content + b"\0" * (len(content) % 2)
    change(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path
