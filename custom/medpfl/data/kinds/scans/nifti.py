"""A NIfTI file's header, and whether its voxels are all there; nothing is decoded."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from nibabel.affines import voxel_sizes
from nibabel.filebasedimages import ImageFileError
from nibabel.orientations import io_orientation
from nibabel.spatialimages import HeaderDataError

from medpfl.data.finding import Finding

_CHUNK = 1 << 22


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


def read_volume(path: Path) -> Volume:
    """Reads a file's header; never raises for a file that is wrong."""
    try:
        image = nibabel.load(path)
        header, shape = image.header, tuple(int(n) for n in image.shape)
        zooms = tuple(float(z) for z in header.get_zooms()[:3])
        expected = int(image.dataobj.offset) + int(np.prod(shape)) * header.get_data_dtype().itemsize
    except FileNotFoundError:
        return _wrong(path, "there is no such file")
    except (ImageFileError, HeaderDataError, OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError) as e:
        first = (str(e).splitlines() or [type(e).__name__])[0]
        return _wrong(path, f"cannot be read as NIfTI: {first}")
    problems = []
    if header.get_data_dtype().kind not in "iuf":
        problems.append(Finding("error", f"{path}: holds {header.get_data_dtype()} voxels; one number each is needed"))
    if len(shape) > 3 and set(shape[3:]) == {1}:
        shape = shape[:3]
    if len(shape) != 3 or shape[2] < 2:
        sizes = "×".join(map(str, shape))
        problems.append(Finding("error", f"{path}: is {sizes}; one volume with several slices is needed"))
    if not np.isfinite(image.affine).all() or abs(np.linalg.det(image.affine[:3, :3])) < 1e-6:
        problems.append(Finding("error", f"{path}: its affine matrix gives the voxels no place in space"))
    elif not (int(header.get("sform_code", 1)) or int(header.get("qform_code", 1))):
        problems.append(Finding("warning", f"{path}: does not say how it is oriented (sform and qform codes are 0)"))
    if not problems and (short := _cut_short(path, expected)):
        problems.append(Finding("error", f"{path}: {short}"))
    usable = not any(problem.level == "error" for problem in problems)
    return Volume(path, zooms, shape, _coverage(image.affine, shape) if usable else 0.0, tuple(problems))


def _wrong(path: Path, message: str) -> Volume:
    return Volume(path, (), (), 0.0, (Finding("error", f"{path}: {message}"),))


def _coverage(affine: np.ndarray, shape: tuple[int, ...]) -> float:
    axis = int(np.flatnonzero(io_orientation(affine)[:, 0] == 2)[0])
    return float(voxel_sizes(affine)[axis] * shape[axis])


def _cut_short(path: Path, expected: int) -> str | None:
    if path.suffix.lower() != ".gz":
        present = path.stat().st_size
    else:
        # A gzip file ends with its content's size modulo 2^32: what fits needs no decompression here.
        with open(path, "rb") as file:
            file.seek(-4, 2)
            if int.from_bytes(file.read(4), "little") == expected % (1 << 32):
                return None
        try:
            present = _inflated(path)
        except (OSError, EOFError, zlib.error) as error:
            return f"cut short or damaged: {error}"
    return f"cut short: {present:,} of {expected:,} bytes are there" if present < expected else None


def _inflated(path: Path) -> int:
    size = 0
    with gzip.open(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
    return size
