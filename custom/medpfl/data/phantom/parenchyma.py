"""The inside of the lungs: uneven density, and emphysema as clusters of holes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft

from medpfl.data.phantom.body import Body, lungs

_STEP = 3.0
"""Spacing in mm of the grid on which textures are drawn."""
_MARGIN = 24.0


@dataclass(frozen=True, eq=False)
class Parenchyma:
    """Textures of one patient on a coarse grid.

    ``texture`` has mean 0 and standard deviation 1; ``holes`` is above 0 in emphysema. Both are (z, y, x) float32 and
    lie on ``grid``, the coordinates x, y, z in mm.
    """

    grid: tuple[np.ndarray, np.ndarray, np.ndarray]
    texture: np.ndarray
    holes: np.ndarray
    hole_hu: float

    def at(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Texture, and the share of emphysema in each voxel, both (z, y, x)."""
        texture, holes = (self._interpolated(field, (z, y, x)) for field in (self.texture, self.holes))
        return texture, np.clip(holes * 5 + 0.5, 0, 1)

    def _interpolated(self, field: np.ndarray, points: tuple[np.ndarray, ...]) -> np.ndarray:
        # One axis after the other, which is trilinear interpolation at a fraction of its cost.
        for axis, (at, grid) in enumerate(zip(points, reversed(self.grid), strict=True)):
            place = np.clip((at - grid[0]) / _STEP, 0, len(grid) - 1.001)
            low = place.astype(np.int64)
            weight = (place - low).astype(np.float32).reshape([-1 if k == axis else 1 for k in range(3)])
            below, above = np.take(field, low, axis), np.take(field, low + 1, axis)
            field = below + weight * (above - below)
        return field


def draw_parenchyma(rng: np.random.Generator, body: Body, share: float) -> Parenchyma:
    """Textures at random.

    Args:
        rng: source of randomness.
        body: whose lungs.
        share: part of the lung that is emphysema, 0 to 1. Holes are some mm to some cm wide, lie in clusters, and are
            more frequent in the upper lobes.
    """
    x, y = _axis(-body.outer_width, body.outer_width), _axis(-body.outer_depth, body.outer_depth)
    z = _axis(0, body.height)
    shape = (len(z), len(y), len(x))
    upper = rng.uniform(1.5, 4.5)
    holes = _clouds(rng, shape, {3.6: 1.0, 8.0: 0.7, 28.0: 0.8})
    holes += (upper * (z / body.height - 0.5)).astype(np.float32)[:, None, None]
    inside = lungs(body, x, y[:, None], z[:, None, None]) < 0
    holes -= np.float32(np.quantile(holes[inside], 1 - share) if share else holes.max() + 1)
    texture = _clouds(rng, shape, {3.0: 0.8, 12.0: 0.6})
    return Parenchyma((x, y, z), texture, holes, float(rng.uniform(-1000, -970)))


def _axis(low: float, high: float) -> np.ndarray:
    """Coordinates with a margin, and of a number that is quick to transform."""
    return low - _MARGIN + _STEP * np.arange(fft.next_fast_len(int((high - low + 2 * _MARGIN) / _STEP), real=True))


def _clouds(rng: np.random.Generator, shape: tuple[int, ...], parts: dict[float, float]) -> np.ndarray:
    """A sum of noises, each smoothed by a Gaussian of so many mm (key) and of a standard deviation (value)."""
    steps = [fft.fftfreq(shape[0], _STEP), fft.fftfreq(shape[1], _STEP), fft.rfftfreq(shape[2], _STEP)]
    z, y, x = (step.astype(np.float32) ** 2 for step in steps)
    squared = z[:, None, None] + y[:, None] + x
    # Powers of independent noises add up, so one draw is enough.
    power = sum(
        deviation**2 * (2 * scale * np.sqrt(np.pi) / _STEP) ** 3 * np.exp(-((2 * np.pi * scale) ** 2) * squared)
        for scale, deviation in parts.items()
    )
    white = fft.rfftn(rng.standard_normal(shape, dtype=np.float32))
    return fft.irfftn(white * np.sqrt(power).astype(np.float32), shape)
