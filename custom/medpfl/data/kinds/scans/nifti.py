"""A NIfTI file's header, and whether its voxels are all there; nothing is decoded."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

import nibabel
import numpy as np
from nibabel import Nifti1Header, Nifti1Image
from nibabel.affines import voxel_sizes
from nibabel.orientations import io_orientation
from nibabel.spatialimages import HeaderDataError

from medpfl.core.errors import UserError, first_line
from medpfl.data.finding import Finding
from medpfl.data.kinds.scans.geometry import TILT
from medpfl.data.kinds.scans.limits import implausible

_CHUNK = 1 << 22
_SAME = 0.01
"""By how much a header's two voxel sizes may differ, in parts of them."""
_APART = 0.5
"""Voxels' shortest edges by which a header's two places of them may differ: they are rounded."""
_OF_SPACE, _OTHER_UNITS = 0b111, {1: "metres", 3: "micrometres"}
"""Bits of NIfTI's ``xyzt_units`` that are a length's, and its numbers for others than mm."""
_FLAT = 1e-3
"""Parts of its edges' product that a voxel's volume is at most where its axes lie in one plane."""


@dataclass(frozen=True)
class Volume:
    """One NIfTI file: voxel edge lengths in mm, shape, mm from bottom to top, and what is odd or wrong with it."""

    path: Path
    spacing: tuple[float, ...]
    shape: tuple[int, ...]
    coverage: float
    problems: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether it can be read as a volume."""
        return not any(problem.level == "error" for problem in self.problems)


def _is_dicom(path: Path) -> bool:
    from pydicom.misc import is_dicom

    try:
        return is_dicom(path)
    except OSError:  # a folder, or a file that may not be read
        return False


def read_volume(path: Path, *, several: bool = False, resampled: bool = True) -> Volume:
    """Reads a file's header; never raises for a file that is wrong.

    Args:
        path: the file.
        several: whether it may have several channels, along the fourth or the fifth axis; the shape is one channel's.
        resampled: whether its voxels are made anew before use, which takes a shear out.
    """
    try:
        image = nibabel.load(path)
        if not isinstance(image, Nifti1Image):  # a Nifti2Image is one
            return _wrong(path, f"is {type(image).__name__.removesuffix('Image')}, not NIfTI, whatever its name")
        header, affine = image.header, np.asarray(image.affine)
        shape = tuple(int(n) for n in image.shape)
        zooms = tuple(float(z) for z in header.get_zooms()[:3])
        number = header.get_data_dtype()
        expected = int(image.dataobj.offset) + prod(shape) * number.itemsize
        oriented = int(header["sform_code"]) or int(header["qform_code"])
        # What is no unit at all, nibabel would not name, and is one that is not said.
        unit = _OTHER_UNITS.get(int(header["xyzt_units"]) & _OF_SPACE)
        spacing = tuple(float(length) for length in voxel_sizes(affine))
    except FileNotFoundError:
        return _wrong(path, "there is no such file")
    except Exception as error:  # nibabel, gzip and zlib raise errors of many kinds on damaged files.
        if _is_dicom(path):
            return _wrong(path, "is a DICOM file, one slice: give the folder of its series")
        return _wrong(path, f"cannot be read as NIfTI: {first_line(error)}")
    if len(shape) > 3 and set(shape[3:]) == {1}:
        shape = shape[:3]
    if several and len(shape) in (4, 5) and set(shape[3:-1]) <= {1}:
        shape = shape[:3]
    if wrong := _no_volume(number, shape, affine, unit, spacing):
        return replace(_wrong(path, wrong), spacing=spacing, shape=shape)
    if short := _cut_short(path, expected):
        return replace(_wrong(path, short), spacing=spacing, shape=shape)
    problems = []
    if not oriented:
        problems.append(Finding("warning", f"{path}: does not say how it is oriented (sform and qform codes are 0)"))
    if (lean := _shear(affine)) > TILT:
        done = (
            "slices are moved back into line before use"
            if resampled
            else "it stays so, and lengths in mm are as if it were not, unless --data-arg spacing resamples it"
        )
        message = f"its axes are {lean:.1f} degrees off right angles (sheared): {done}"
        problems.append(Finding("warning", f"{path}: {message}"))
    if not np.allclose(zooms, spacing, rtol=_SAME, atol=0):
        told, read = (f"{a:.3g}, {b:.3g} and {c:.3g} mm" for a, b, c in (zooms, spacing))
        message = f"its header has voxels of {told} (pixdim), and its place in space (sform) {read}, which is read"
        problems.append(Finding("warning", f"{path}: {message}"))
    elif lean <= TILT and (apart := _forms_apart(header, shape)) > _APART * min(spacing):
        message = (
            f"its header says twice where its voxels lie, up to {apart:.3g} mm apart: sform is read, not qform (has a "
            "program turned or mirrored the one alone?)"
        )
        problems.append(Finding("warning", f"{path}: {message}"))
    return Volume(path, spacing, shape, _coverage(affine, shape), tuple(problems))


def _no_volume(
    number: np.dtype,
    shape: tuple[int, ...],
    affine: np.ndarray,
    unit: str | None,
    spacing: tuple[float, ...],
) -> str | None:
    """What makes an intact file no volume that can be used."""
    sizes = "×".join(map(str, shape))
    if number.kind not in "iuf":
        return f"holds {number} voxels; one number each is needed"
    if len(shape) != 3 or min(shape[:2]) < 1 or shape[2] < 2:
        return f"is {sizes}; one volume with several slices is needed"
    if unit:
        return f"says that its voxels are measured in {unit}; millimetres are read"
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) <= _FLAT * edges.prod():
        return "its affine matrix gives the voxels no place in space"
    return implausible(spacing, shape)


def _shear(affine: np.ndarray) -> float:
    """Degrees by which the two axes that are furthest from it miss a right angle."""
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return float(np.degrees(np.arcsin(np.clip(np.abs(np.triu(axes.T @ axes, 1)).max(), 0, 1))))


def _forms_apart(header: Nifti1Header, shape: tuple[int, ...]) -> float:
    """By how many mm sform and qform place a corner's voxel apart at most; 0 unless both are said."""
    try:
        sform, qform = (form(coded=True)[0] for form in (header.get_sform, header.get_qform))
    except (HeaderDataError, ValueError):  # a qform that is no rotation: nobody reads it
        return 0.0
    if sform is None or qform is None:
        return 0.0
    corners = np.array([(*corner, 1) for corner in product(*((0, n - 1) for n in shape))])
    return float(np.linalg.norm((corners @ (sform - qform).T)[:, :3], axis=1).max())


def _wrong(path: Path, message: str) -> Volume:
    return Volume(path, (), (), 0.0, (Finding("error", f"{path}: {message}"),))


def _coverage(affine: np.ndarray, shape: tuple[int, ...]) -> float:
    axes = np.flatnonzero(io_orientation(affine)[:, 0] == 2)
    return float(voxel_sizes(affine)[axes[0]] * shape[axes[0]]) if len(axes) else 0.0


def _cut_short(path: Path, expected: int) -> str | None:
    if path.suffix.lower() == ".gz":
        # A gzip file ends with its content's size modulo 2^32: what fits needs no decompression here.
        with open(path, "rb") as file:
            file.seek(-4, 2)
            if int.from_bytes(file.read(4), "little") == expected % (1 << 32):
                return None
        return inflate(path, expected)
    present = path.stat().st_size
    return f"cut short: {present:,} of {expected:,} bytes are there" if present < expected else None


def require_whole(path: Path) -> None:
    """UserError if a file is compressed and its checksum, at which nibabel does not look, is of other content."""
    if path.suffix.lower() == ".gz" and (damage := inflate(path)):
        raise UserError(f"{path}: {damage}")


def inflate(path: Path, expected: int = 0) -> str | None:
    """What is wrong with a gzip file, read to its end for its checksum, or with less than ``expected`` bytes in it."""
    present = 0
    try:
        with gzip.open(path) as file:
            while chunk := file.read(_CHUNK):
                present += len(chunk)
    except (OSError, EOFError, zlib.error) as error:
        return f"cut short or damaged: {first_line(error)}"
    return f"cut short: {present:,} of {expected:,} bytes are there" if present < expected else None
