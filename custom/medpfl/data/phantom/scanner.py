"""What a centre's scanner makes of a patient: slices, blur, noise and wrong numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft

from medpfl.data.phantom.anatomy import Patient
from medpfl.data.phantom.six_centres import Centre, Kernel

LOWEST, HIGHEST = -1024, 3071
"""What 12 bits hold."""
_MARGIN = 12.0
"""How far a scan goes beyond the lungs, in mm."""
_SUBSLICE = 1.25
"""A slice is the mean of planes this far apart in mm, or closer."""
_EDGE_SCALE = 2.5
_AVERAGE_WIDTH = 28.6
"""Diameter in cm of a disc as large as the average patient."""
_SLAB = 1 << 20
"""Voxels rendered at once."""


@dataclass(frozen=True, eq=False)
class Scan:
    """A reconstructed series, from the feet to the head.

    ``hu`` is (slices, rows, columns) int16; ``mask`` likewise, uint8: 1 where more than half of a voxel is lung without
    vessels and airways, 2 where more than half of it is emphysema. ``origin`` is the centre of the first voxel as x, y,
    z in mm, ``pixel`` the distance between pixels. ``emphysema`` is the share of the lung that is emphysema, without
    blur and noise.
    """

    hu: np.ndarray
    origin: tuple[float, float, float]
    pixel: float
    emphysema: float
    mask: np.ndarray


def scan(patient: Patient, centre: Centre, matrix: int, rng: np.random.Generator) -> Scan:
    """Scans a patient.

    Args:
        patient: who.
        centre: where.
        matrix: rows and columns.
        rng: for noise and for how the patient lies.
    """
    body, pixel = patient.body, centre.field_of_view / matrix
    sideways, up = np.round(rng.normal((0, 14), 4), 1)
    x, y = ((np.arange(matrix) - (matrix - 1) / 2) * pixel + offset for offset in (sideways, up))
    bottom = round(float(rng.uniform(-_MARGIN - 4, -_MARGIN)), 1)
    slices = int((body.height + _MARGIN - bottom) / centre.increment) + 1
    z = bottom + centre.increment * np.arange(slices)
    planes = max(1, int(np.ceil(centre.thickness / _SUBSLICE)))
    within = ((np.arange(planes) + 0.5) / planes - 0.5) * centre.thickness

    hu, lung, holes = np.empty((slices, matrix, matrix), np.float32), 0.0, 0.0
    mask = np.empty(hu.shape, np.uint8)
    step = max(1, _SLAB // (planes * matrix**2))
    for k in range(0, slices, step):
        heights = (z[k : k + step, None] + within).ravel().astype(np.float32)
        slab, inside, ill = patient.render(x.astype(np.float32), y.astype(np.float32), heights)
        hu[k : k + step], part, empty = (
            of.reshape(-1, planes, matrix, matrix).mean(axis=1) for of in (slab, inside, inside * ill)
        )
        mask[k : k + step] = np.where(empty > 0.5, 2, part > 0.5)
        lung += float(inside.sum(dtype=np.float64))
        holes += float(inside[ill].sum(dtype=np.float64))

    strength = centre.noise * _size_factor(body.outer_width, body.outer_depth)
    for k in range(0, slices, step):
        part = hu[k : k + step]
        part[:] = reconstruct(part, pixel, centre.kernel, strength, rng)
    # Water is checked every morning; what lies far from it drifts.
    hu -= centre.air_error / 1000 * np.clip(hu, -1100, 0)
    return Scan(
        np.rint(np.clip(hu, LOWEST, HIGHEST)).astype(np.int16),
        (float(x[0]), float(y[0]), bottom),
        pixel,
        holes / lung,
        mask,
    )


def reconstruct(images: np.ndarray, pixel: float, kernel: Kernel, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Filters images by a kernel and adds noise that the kernel has filtered too.

    The power of the noise rises with frequency, as the ramp filter of backprojection makes it, and falls with the
    kernel's transfer function.

    Args:
        images: (n, rows, columns) float32 HU.
        pixel: in mm.
        kernel: the kernel.
        noise: standard deviation in HU.
        rng: for the noise.
    """
    shape = images.shape[1:]
    frequency = np.hypot(fft.fftfreq(shape[0], pixel)[:, None], fft.rfftfreq(shape[1], pixel)).astype(np.float32)
    whole = np.hypot(fft.fftfreq(shape[0], pixel)[:, None], fft.fftfreq(shape[1], pixel))
    power = np.mean(_ramp(whole) ** 2 * _transfer(whole, kernel) ** 2)
    transfer = _transfer(frequency, kernel)
    spectrum = fft.rfft2(images) * transfer
    if noise:
        white = fft.rfft2(rng.standard_normal(images.shape, dtype=np.float32))
        spectrum += white * (noise / np.sqrt(power) * _ramp(frequency) * transfer).astype(np.float32)
    return fft.irfft2(spectrum, shape)


def _transfer(frequency: np.ndarray, kernel: Kernel) -> np.ndarray:
    blur, around = (np.exp(-2 * (np.pi * scale * frequency) ** 2) for scale in (kernel.blur, _EDGE_SCALE))
    return blur * (1 + kernel.edge * (1 - around))


def _ramp(frequency: np.ndarray) -> np.ndarray:
    return np.sqrt(frequency + 0.02)


def _size_factor(half_width: float, half_depth: float) -> float:
    """Noise of this patient over noise of the average one; the tube's automatic makes up for half of it.

    Rays lose 0.19 per cm of water at the middle energies of 120 kV.
    """
    width = 0.2 * np.sqrt(half_width * half_depth)
    return float(np.exp(0.5 * 0.19 / 2 * (width - _AVERAGE_WIDTH)))
