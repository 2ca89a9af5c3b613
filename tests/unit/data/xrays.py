"""DICOM X-ray images that tests make."""

from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

DIGITAL_XRAY = "1.2.840.10008.5.1.4.1.1.1.1"


def write_xray(file: Path, values, patient="p1", bits=12, **fields) -> Path:
    """A DX image of these stored values, (rows, columns); ``fields`` are further elements."""
    values = np.asarray(values, dtype=np.uint16)
    dataset = Dataset()
    dataset.SOPClassUID = fields.pop("SOPClassUID", DIGITAL_XRAY)
    dataset.SOPInstanceUID = generate_uid()
    dataset.Modality, dataset.PatientID = "DX", patient
    dataset.Rows, dataset.Columns = values.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, bits, bits - 1, 0
    dataset.PixelData = values.tobytes()
    for name, value in fields.items():
        setattr(dataset, name, value)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(file, enforce_file_format=True)
    return file


def voi_lut(entries, bits) -> Sequence:
    """A VOI LUT from stored value 0 on."""
    item = Dataset()
    item.LUTDescriptor = [len(entries), 0, bits]
    item.LUTData = list(entries)
    item["LUTDescriptor"].VR = item["LUTData"].VR = "US"
    return Sequence([item])


def write_hospital(root: Path, centres=("north", "south"), each=6) -> Path:
    """Centres with two classes; two images of every patient, the ill ones with a bright corner; half without suffix."""
    for c, centre in enumerate(centres):
        for label in ("healthy", "ill"):
            for number in range(each):
                rng = np.random.default_rng([c, label == "ill", number])
                for view in ("pa", "lateral"):
                    values = rng.integers(200, 1500, (24, 20))
                    values[:8, :8] += 2000 * (label == "ill")
                    name = f"{label}{number}{view}" + (".dcm" if number % 2 else "")
                    write_xray(root / centre / label / name, values, patient=f"secret-{centre}-{label}-{number}")
    return root
