"""Small CT series on disk, written slice by slice, with every fault a hospital's export can have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import nibabel
import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

SPACING = (0.8, 0.7, 2.5)
"""mm between rows, columns and slices."""


def chest(slices: int = 12, edge: int = 32, seed: int = 0) -> np.ndarray:
    """(slices, rows, columns) int16 HU: air, a body, two lungs with noise, and a bright dot that moves upwards.

    The right lung is the larger one and the dot lies in front, so that no flip of an axis goes unnoticed.
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:edge, :edge] / edge
    volume = np.full((slices, edge, edge), -1000)
    volume[:, ((x - 0.5) / 0.42) ** 2 + ((y - 0.5) / 0.36) ** 2 < 1] = 40
    for centre, radius in ((0.32, 0.15), (0.68, 0.11)):
        volume[:, ((x - centre) / radius) ** 2 + ((y - 0.5) / 0.24) ** 2 < 1] = -850
    for number in range(slices):
        volume[number, edge // 4, edge // 2] = 300 + 10 * number
    return (volume + rng.integers(-20, 20, volume.shape)).astype(np.int16)


def write_series(
    folder: Path,
    volume: np.ndarray,
    *,
    patient: str = "P1",
    uid: str | None = None,
    spacing: Sequence[float] = SPACING,
    slope: Sequence[float] | float = 1.0,
    intercept: Sequence[float] | float = -1024.0,
    start: Sequence[float] = (-10.0, -20.0, -100.0),
    orientation: Sequence[float] = (1, 0, 0, 0, 1, 0),
    tilt: float = 0.0,
    names: Callable[[int], str] = "{:03d}.dcm".format,
    change: Callable[[int, Dataset], None] | None = None,
) -> str:
    """Writes (slices, rows, columns) HU, the first slice the most inferior; returns the SeriesInstanceUID.

    Args:
        folder: made if need be.
        slope: of all slices or of each; HU that are no multiple of it are rounded.
        tilt: degrees by which the gantry leans: slices keep stepping along z while their plane is tilted.
        names: file name of a slice.
        change: called with a slice's number and data set before it is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    uid = uid or generate_uid()
    angle = np.radians(tilt)
    if tilt:
        orientation = (1, 0, 0, 0, np.cos(angle), np.sin(angle))
    row, column = np.split(np.array(orientation, dtype=float), 2)
    step = np.array([0, 0, spacing[2]]) if tilt else np.cross(row, column) * spacing[2]
    common = _common(uid, patient, spacing, orientation)
    for number, values in enumerate(volume):
        dataset = copy.deepcopy(common) if change else common
        m = float(np.broadcast_to(slope, len(volume))[number])
        b = float(np.broadcast_to(intercept, len(volume))[number])
        instance = generate_uid(entropy_srcs=[uid, str(number)])
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = instance
        dataset.InstanceNumber = number + 1
        dataset.ImagePositionPatient = [round(float(p), 6) for p in np.array(start) + number * step]
        dataset.Rows, dataset.Columns = values.shape
        dataset.RescaleSlope, dataset.RescaleIntercept = m, b
        dataset.PixelData = np.round((values - b) / m).astype("<i2").tobytes()
        if change:
            change(number, dataset)
        dataset.save_as(folder / names(number), enforce_file_format=True)
    return uid


def _common(uid: str, patient: str, spacing: Sequence[float], orientation: Sequence[float]) -> FileDataset:
    """What all slices of a series say."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = CTImageStorage, ExplicitVRLittleEndian
    dataset = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SeriesInstanceUID = CTImageStorage, uid
    dataset.PatientID, dataset.Modality = patient, "CT"
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    dataset.Manufacturer, dataset.ConvolutionKernel = "ACME", "B30f"
    dataset.ImageOrientationPatient = [round(float(o), 12) for o in orientation]
    dataset.PixelSpacing, dataset.SliceThickness = list(spacing[:2]), spacing[2]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.PixelRepresentation = 1
    return dataset


def write_nifti(
    path: Path,
    volume: np.ndarray,
    *,
    axcodes: str = "LPS",
    spacing: Sequence[float] = SPACING,
    start: Sequence[float] = (-10.0, -20.0, -100.0),
) -> Path:
    """Writes the same volume as :func:`write_series`, its voxels stored in the order of ``axcodes``."""
    affine = np.diag([-spacing[1], -spacing[0], spacing[2], 1.0])
    affine[:3, 3] = -start[0], -start[1], start[2]
    image = nibabel.Nifti1Image(np.ascontiguousarray(volume.transpose(2, 1, 0)), affine)
    now = nibabel.orientations.io_orientation(affine)
    then = nibabel.orientations.axcodes2ornt(tuple(axcodes))
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image.as_reoriented(nibabel.orientations.ornt_transform(now, then)), path)
    return path


def write_centre(folder: Path, labels: Sequence[int | str], **options) -> list[str]:
    """A centre of one small DICOM series a label, and its table; the series' folders are s0, s1, ..."""
    for number in range(len(labels)):
        write_series(folder / f"s{number}", chest(seed=number), patient=f"P{number}", **options)
    rows = [f"s{number},{label}" for number, label in enumerate(labels)]
    (folder / "labels.csv").write_text("\n".join(["series,label", *rows]) + "\n")
    return [f"s{number}" for number in range(len(labels))]
