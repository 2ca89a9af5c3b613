"""Writes a scan as a CT series that any DICOM reader takes and that says in every file that it is a phantom."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import PYDICOM_IMPLEMENTATION_UID, CTImageStorage, ExplicitVRLittleEndian, generate_uid

from medpfl.data.phantom.scanner import Scan
from medpfl.data.phantom.six_centres import Centre

MANUFACTURER = "medpfl phantom"
NOTE = "Computer-made phantom of the medpfl package. No patient, no scanner. Not for clinical use."
_DATE, _TIME = "20000101", "120000"


def write_series(folder: Path, scan: Scan, centre: Centre, patient: str, *entropy: str) -> str:
    """Writes ``0001.dcm``, ``0002.dcm``, ... in the order in which the centre counts its images.

    Args:
        folder: an empty folder.
        scan: what to write.
        centre: where it was made.
        patient: the patient's identifier.
        entropy: what makes this series unlike any other; UIDs derive from it.

    Returns:
        The SeriesInstanceUID.
    """
    image = _header(scan, centre, patient, entropy)
    stored = _stored(scan, centre)
    slices = range(len(stored)) if centre.feet_first else reversed(range(len(stored)))
    x, y, bottom = scan.origin
    for number, k in enumerate(slices, start=1):
        uid = _uid(*entropy, "image", str(number))
        z = round(bottom + k * centre.increment, 3)
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = uid
        image.InstanceNumber = number
        image.ImagePositionPatient = [round(x, 6), round(y, 6), z]
        image.SliceLocation = z
        image.PixelData = stored[k].tobytes()
        file = io.BytesIO()  # pydicom puts a traceback into the words of an error in writing
        image.save_as(file, enforce_file_format=True)
        (folder / f"{number:04d}.dcm").write_bytes(file.getvalue())
    return image.SeriesInstanceUID


def _header(scan: Scan, centre: Centre, patient: str, entropy: tuple[str, ...]) -> Dataset:
    """What all images of a series share."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = PYDICOM_IMPLEMENTATION_UID
    meta.ImplementationVersionName = "MEDPFL_PHANTOM"
    image = Dataset()
    image.file_meta = meta
    image.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    image.SOPClassUID = CTImageStorage
    image.StudyDate = image.SeriesDate = image.AcquisitionDate = image.ContentDate = _DATE
    image.StudyTime = image.SeriesTime = image.AcquisitionTime = image.ContentTime = _TIME
    image.AccessionNumber = image.ReferringPhysicianName = ""
    image.Modality = "CT"
    image.Manufacturer = image.ManufacturerModelName = image.InstitutionName = MANUFACTURER
    image.StationName = centre.name.upper()
    image.StudyDescription = "PHANTOM chest CT"
    image.SeriesDescription = f"PHANTOM {centre.thickness:g} mm {centre.kernel.name}"
    image.PatientName = f"PHANTOM^{patient.removeprefix('PHANTOM-')}"
    image.PatientID = patient
    image.PatientBirthDate = ""
    image.PatientSex = "O"
    image.PatientIdentityRemoved = "YES"
    image.DeidentificationMethod = "There is no patient: computer-made phantom"
    image.QualityControlSubject = "YES"
    image.BodyPartExamined = "CHEST"
    image.SliceThickness = centre.thickness
    image.KVP = 120
    image.SpacingBetweenSlices = centre.increment
    image.ReconstructionDiameter = centre.field_of_view
    image.XRayTubeCurrent = centre.tube_current
    image.ConvolutionKernel = centre.kernel.name
    image.PatientPosition = "HFS"
    image.StudyInstanceUID = _uid(*entropy, "study")
    image.SeriesInstanceUID = _uid(*entropy, "series")
    image.FrameOfReferenceUID = _uid(*entropy, "frame of reference")
    image.StudyID = image.PositionReferenceIndicator = ""
    image.SeriesNumber = image.AcquisitionNumber = 1
    image.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    image.ImageComments = NOTE
    image.SamplesPerPixel = 1
    image.PhotometricInterpretation = "MONOCHROME2"
    image.Rows, image.Columns = scan.hu.shape[1:]
    image.PixelSpacing = [round(scan.pixel, 6)] * 2
    signed = _signed(centre)
    image.BitsAllocated = 16
    image.BitsStored = 16 if signed else 12
    image.HighBit = image.BitsStored - 1
    image.PixelRepresentation = int(signed)
    if centre.padding is not None:
        image.PixelPaddingValue = centre.padding
    image.BurnedInAnnotation = "NO"
    image.WindowCenter, image.WindowWidth = -600, 1500
    image.RescaleIntercept, image.RescaleSlope, image.RescaleType = centre.intercept, 1, "HU"
    return image


def _stored(scan: Scan, centre: Centre) -> np.ndarray:
    """Pixels as the file has them: (slices, rows, columns), 16 bits, with padding where the centre has it."""
    stored = scan.hu - np.int16(centre.intercept)
    if centre.padding is not None:
        matrix = stored.shape[1]
        away = (np.arange(matrix) - (matrix - 1) / 2) ** 2
        stored[:, away[:, None] + away > (matrix / 2) ** 2] = centre.padding
    return stored.astype("<i2" if _signed(centre) else "<u2")


def _signed(centre: Centre) -> bool:
    return centre.padding is not None or centre.intercept > -1024


def _uid(*entropy: str) -> str:
    return generate_uid(entropy_srcs=["/".join(["medpfl phantom", *entropy])])
