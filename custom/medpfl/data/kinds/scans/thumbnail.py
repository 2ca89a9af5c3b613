"""A small picture of a scan's middle slice, decoded alone."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
from nibabel.orientations import io_orientation
from pydicom import dcmread
from pydicom.pixels import apply_modality_lut

from medpfl.core.errors import UserError, first_line
from medpfl.core.quiet import quiet
from medpfl.data.kinds.scans.limits import too_large

EDGE = 96
"""Pixels of a thumbnail's longer edge."""
_WINDOW = (-1200.0, 400.0)
"""HU that are black and white in CT."""


def dicom_slice(file: Path) -> np.ndarray:
    """A DICOM file's picture (rows, columns), rescaled; of several frames the middle one.

    Raises:
        UserError: it cannot be decoded, or is too large.
    """
    try:
        with quiet():
            dataset = dcmread(file)
            rows, columns, frames = (int(dataset.get(k) or 1) for k in ("Rows", "Columns", "NumberOfFrames"))
            if reason := too_large((rows, columns, frames)):
                raise UserError(f"{file}: {reason}")
            pixels = apply_modality_lut(dataset.pixel_array, dataset)
            if int(dataset.get("SamplesPerPixel") or 1) > 1:
                pixels = pixels.mean(axis=-1)
            while pixels.ndim > 2:
                pixels = pixels[len(pixels) // 2]
            if dataset.get("PhotometricInterpretation") == "MONOCHROME1":
                pixels = -pixels.astype(np.float64)
            return np.asarray(pixels, dtype=np.float64)
    except UserError:
        raise
    except Exception as error:  # Decoders raise whatever they like on damaged pixels.
        raise UserError(f"{file}: its pixels cannot be decoded: {first_line(error)}") from None


def nifti_slice(file: Path) -> np.ndarray:
    """The middle axial slice of a NIfTI file as (rows, columns), anterior above; UserError if it cannot be read."""
    try:
        image = nibabel.load(file)
        turned = io_orientation(image.affine)
        where: list[slice | int] = [slice(None)] * 3 + [0] * (len(image.shape) - 3)
        axis = int(np.flatnonzero(turned[:, 0] == 2)[0])
        middle = image.shape[axis] // 2  # from the feet up, as DICOM slices are counted
        where[axis] = middle if turned[axis, 1] > 0 else image.shape[axis] - 1 - middle
        plane = np.asarray(image.dataobj[tuple(where)], dtype=np.float64)
        first, second = (turned[k] for k in range(3) if k != axis)
        if first[1] < 0:
            plane = plane[::-1]
        if second[1] < 0:
            plane = plane[:, ::-1]
        return (plane.T if first[0] < second[0] else plane)[::-1, ::-1]
    except Exception as error:  # nibabel, gzip and zlib raise errors of many kinds on damaged files.
        raise UserError(f"{file}: cannot be read: {first_line(error)}") from None


def grey(values: np.ndarray, ct: bool) -> np.ndarray:
    """A slice as a small picture (rows, columns) uint8; other values than CT's between their 1st and 99th hundredth."""
    from PIL import Image

    values = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=-1024.0, posinf=0.0, neginf=-1024.0)
    low, high = _WINDOW if ct else np.percentile(values, (1, 99))
    pixels = (np.clip((values - low) / max(high - low, 1e-9), 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((EDGE, EDGE))
    return np.asarray(picture)
