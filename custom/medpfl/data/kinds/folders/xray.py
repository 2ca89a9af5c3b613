"""DICOM X-ray images as pictures: CR, DX, mammograms, dental; as a viewer shows them, in 8 bits.

The values go the standard's way (PS3.3 C.11), by pydicom: modality LUT or rescaling, VOI LUT or the first window, and
MONOCHROME1 turned over. The range that these declare becomes 0 to 255; without a window it is that of the bits stored.
Nothing is stretched to an image's own values: two images are read alike.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from medpfl.core.errors import first_line
from medpfl.core.quiet import quiet
from medpfl.data.dicom_words import modality, patient_id
from medpfl.data.files import DICOM, PICTURES, is_nifti, walk
from medpfl.data.kinds.scans.limits import too_large

if TYPE_CHECKING:
    from PIL.Image import Image
    from pydicom import Dataset

MODALITIES = {"CR", "DX", "MG", "RG", "IO", "PX"}
"""Computed and digital radiography, mammography, radiographs that were scanned, intra-oral and panoramic X-ray."""
_SLICES = {"CT", "MR", "PT"}
"""Of images that are one of many of a scan: such folders are not looked through to the end."""
_TAGS = [
    "Modality", "PatientID", "Rows", "Columns", "SOPClassUID", "SamplesPerPixel", "PhotometricInterpretation",
    "NumberOfFrames", "PresentationIntentType", "SeriesDescription", "StudyDescription", "ViewPosition", "StudyDate",
]  # fmt: skip


def is_dicom(file: Path) -> bool:
    """Whether a file is called like DICOM or, with a name that says nothing, begins like it."""
    suffix = file.suffix.lower()
    if suffix in DICOM:
        return True
    if suffix in PICTURES or (suffix and not suffix[1:].isdigit()):  # a name may be a UID
        return False
    try:
        with open(file, "rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:
        return False


def holds_xrays(folder: Path) -> bool:
    """Whether a DICOM file in a folder or below is an X-ray image, and nothing before it is of a scan or NIfTI.

    Other images, such as ultrasound, may lie before it; reading the folder refuses them by name.
    """
    for file in walk(folder, lambda error: None):
        if is_nifti(file.name):
            return False
        known = read_head(file) if is_dicom(file) else None
        if known is not None and known.rows and known.modality in {*MODALITIES, *_SLICES}:
            return known.modality in MODALITIES
    return False


def person(file: Path) -> str | None:
    """PatientID of an X-ray image's file, empty where it does not say; None if it is a DICOM file without an image.

    A file that cannot be read has no patient; reading it says why.
    """
    if (known := read_head(file)) is None:
        return ""
    if not known.rows and known.stored and "Image Storage" not in known.stored:
        return None
    return known.patient


def xray(file: Path) -> Image:
    """An X-ray image, 8 bits, grey; bright is what absorbs, and padding is black.

    Raises:
        ValueError: the file has another image, raw values of the detector, or cannot be decoded; it says why.
    """
    from PIL import Image as images
    from pydicom import dcmread
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    from medpfl.data.kinds.scans.dicom_reader import padding_of

    with quiet():
        dataset = dcmread(file)
        _require_xray(dataset)
        try:
            values = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset)
            padding = padding_of(dataset)
        except Exception as error:  # Decoders raise whatever they like on damaged pixels.
            raise ValueError(f"its pixels cannot be decoded: {first_line(error)}") from None
        dark, bright = _range(dataset)
    shares = (values.astype(np.float64) - dark) / (bright - dark)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        shares = 1 - shares
    if padding is not None:  # beside the image, and not what absorbs most
        shares[padding] = 0
    return images.fromarray(np.rint(255 * shares.clip(0, 1)).astype(np.uint8))


def xray_size(file: Path) -> tuple[int, int]:
    """Width and height in pixels, from the header."""
    known = read_head(file)
    return (known.columns, known.rows) if known is not None else (0, 0)


def pixel_hash(file: Path) -> bytes:
    """Of an image's encoded pixels: the same where only the header was changed, as by anonymising anew."""
    from pydicom import dcmread

    try:
        with quiet():
            content = dcmread(file, specific_tags=["PixelData"]).PixelData
    except Exception:  # what cannot be read is like nothing but its copy, and reading it says why
        content = file.read_bytes()
    return hashlib.blake2b(content, digest_size=16).digest()


class Head(NamedTuple):
    """What the head of a file says.

    Attributes:
        stored: what kind of object, in words.
        description: of the series, else of the study, with the view.
        date: of the study, as YYYYMMDD.
        refused: why it is not read as an X-ray image, as far as the head tells; empty if it is.
    """

    modality: str
    patient: str
    stored: str
    rows: int
    columns: int
    description: str
    date: str
    refused: str


def read_head(file: Path) -> Head | None:
    """The head of a DICOM file; None if it cannot be read as one."""
    from pydicom import dcmread
    from pydicom.uid import UID

    try:
        with quiet():
            known = dcmread(file, stop_before_pixels=True, specific_tags=_TAGS)
            described = known.get("SeriesDescription") or known.get("StudyDescription") or ""
            return Head(
                modality(known),
                patient_id(known),
                UID(str(known.get("SOPClassUID") or known.file_meta.get("MediaStorageSOPClassUID") or "")).name,
                int(known.get("Rows") or 0),
                int(known.get("Columns") or 0),
                " ".join(filter(None, (str(described).strip(), str(known.get("ViewPosition") or "")))),
                str(known.get("StudyDate") or ""),
                _refused(known),
            )
    except Exception:  # pydicom raises errors of many kinds on damaged headers; reading the image says which
        return None


def _refused(dataset: Dataset) -> str:
    try:
        _require_xray(dataset)
    except ValueError as error:
        return str(error)
    return ""


def _require_xray(dataset: Dataset) -> None:
    said, colours = modality(dataset), int(dataset.get("SamplesPerPixel") or 1)
    if said not in MODALITIES:
        listed = ", ".join(sorted(MODALITIES))
        raise ValueError(f"a DICOM image of modality {said or 'unknown'}; pictures are X-ray images ({listed})")
    if colours != 1 or not str(dataset.get("PhotometricInterpretation")).startswith("MONOCHROME"):
        raise ValueError(f"a picture of {colours} colours ({dataset.get('PhotometricInterpretation')}), no X-ray image")
    if int(dataset.get("NumberOfFrames") or 1) > 1:
        raise ValueError(f"{dataset.NumberOfFrames} frames; one image a file is needed")
    if reason := too_large((int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0))):
        raise ValueError(reason)
    if str(dataset.get("PresentationIntentType") or "").strip() == "FOR PROCESSING":
        raise ValueError("raw values of the detector (FOR PROCESSING): export the image FOR PRESENTATION")


def _range(dataset: Dataset) -> tuple[float, float]:
    """What is dark and what is bright, of the values that an image can have after pydicom's LUTs and windows.

    A window maps low values to what the least stored number is rescaled to, which with a negative slope is the highest.
    """
    voi, modality = dataset.get("VOILUTSequence"), dataset.get("ModalityLUTSequence")
    if table := voi or modality:
        return 0.0, 2.0 ** int(table[0].LUTDescriptor[2]) - 1
    bits, signed = int(dataset.BitsStored), int(dataset.PixelRepresentation)
    ends = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)
    slope, intercept = dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")
    if slope is not None and intercept is not None:
        ends = tuple(end * float(slope) + float(intercept) for end in ends)
    low, high = sorted(ends)
    if not low < high:
        raise ValueError(f"values from {low:g} to {high:g}: its bits or its rescaling are wrong")
    windowed = None not in (dataset.get("WindowCenter"), dataset.get("WindowWidth"))
    return (ends[0], ends[1]) if windowed else (low, high)
