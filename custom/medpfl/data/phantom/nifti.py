"""Writes a scan and its mask as NIfTI, where they lie as in the DICOM series of the same scan."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np

from medpfl.core.whole_file import write_bytes
from medpfl.data.phantom.scanner import Scan
from medpfl.data.phantom.six_centres import Centre


def write_volume(folder: Path, scan: Scan, centre: Centre, patient: str) -> str:
    """Writes ``PATIENT.nii.gz``, in HU, and ``PATIENT_mask.nii.gz``; the same scan gives the same bytes.

    Returns:
        The volume's file name.
    """
    x, y, bottom = scan.origin
    # DICOM's axes run to the left and to the back, NIfTI's to the right and to the front.
    affine = np.array(
        [[-scan.pixel, 0, 0, -x], [0, -scan.pixel, 0, -y], [0, 0, centre.increment, bottom], [0, 0, 0, 1]]
    )
    for name, values in ((patient, scan.hu), (f"{patient}_mask", scan.mask)):
        image = nibabel.Nifti1Image(values.transpose(2, 1, 0), affine)
        image.header.set_xyzt_units("mm")
        image.header["descrip"] = b"medpfl phantom: computer-made, no patient"
        write_bytes(folder / f"{name}.nii.gz", gzip.compress(image.to_bytes(), 6, mtime=0), durable=False)
    return f"{patient}.nii.gz"
