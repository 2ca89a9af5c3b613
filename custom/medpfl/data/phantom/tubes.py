"""Vessels and airways: trees of tapering tubes, grown at random and painted into a volume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MURRAY = 2.92
"""Exponent of the radii at a fork, as measured in pulmonary arteries (Dong et al. 2020)."""
_DETOUR = 0.5
"""How much the way to the root counts beside the new branch: 0 winds, 1 is a star."""


@dataclass(frozen=True, eq=False)
class Tubes:
    """Straight pieces of tube.

    ``ends`` is (n, 2, 3) in mm as x, y, z; ``radii`` is (n,); both float32.
    """

    ends: np.ndarray
    radii: np.ndarray

    def __add__(self, other: Tubes) -> Tubes:
        return Tubes(np.concatenate([self.ends, other.ends]), np.concatenate([self.radii, other.radii]))

    def widened(self, factor: float, more: float) -> Tubes:
        """The same with other radii."""
        return Tubes(self.ends, self.radii * np.float32(factor) + np.float32(more))


def path(points: Sequence[Sequence[float]], radius: float) -> Tubes:
    """A tube through points."""
    points = np.asarray(points, np.float32)
    return Tubes(np.stack([points[:-1], points[1:]], axis=1), np.full(len(points) - 1, radius, np.float32))


def grow(root: Sequence[float], tips: np.ndarray, tip_radius: float) -> Tubes:
    """Connects points to a tree, the nearest first; each joins where new branch and way to the root are short.

    Args:
        root: where the tree begins.
        tips: (n, 3) points to reach.
        tip_radius: of the last branches; before a fork it follows Murray's law.
    """
    tips = tips[np.argsort(np.linalg.norm(tips - np.asarray(root), axis=1), kind="stable")]
    nodes = np.concatenate([[root], tips]).astype(np.float32)
    way, parent = np.zeros(len(nodes), np.float32), np.zeros(len(nodes), np.int64)
    for k in range(1, len(nodes)):
        branch = np.sqrt(((nodes[:k] - nodes[k]) ** 2).sum(axis=1))
        parent[k] = np.argmin(branch + _DETOUR * way[:k])
        way[k] = way[parent[k]] + branch[parent[k]]
    reached = np.ones(len(nodes))
    for k in range(len(nodes) - 1, 0, -1):
        reached[parent[k]] += reached[k]
    radii = tip_radius * reached[1:] ** (1 / _MURRAY)
    return Tubes(np.stack([nodes[parent[1:]], nodes[1:]], axis=1), radii.astype(np.float32))


def paint(
    tubes: Tubes,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    layers: Sequence[tuple[np.ndarray, float]],
    keep: np.ndarray | None = None,
) -> None:
    """Blends tubes into volumes; a voxel that a tube covers in part takes that part.

    Args:
        tubes: what to paint.
        x, y, z: ascending coordinates of the voxels.
        layers: pairs of a (z, y, x) volume, changed in place, and the value inside tubes.
        keep: (z, y, x) factor of the paint's strength.
    """
    pixel = float(x[1] - x[0])
    reach = tubes.radii + np.float32(pixel)
    low, high = tubes.ends.min(axis=1) - reach[:, None], tubes.ends.max(axis=1) + reach[:, None]
    first = [np.searchsorted(axis, low[:, k]) for k, axis in enumerate((x, y, z))]
    last = [np.searchsorted(axis, high[:, k]) for k, axis in enumerate((x, y, z))]
    inside = (first[0] < last[0]) & (first[1] < last[1]) & (first[2] < last[2])
    for k in np.flatnonzero(inside):
        i, j, h = (slice(first[axis][k], last[axis][k]) for axis in range(3))
        cover = _cover(tubes.ends[k], float(tubes.radii[k]), x[i], y[j][:, None], z[h][:, None, None], pixel)
        if keep is not None:
            cover *= keep[h, j, i]
        for volume, value in layers:
            part = volume[h, j, i]
            part += cover * (value - part)


def _cover(ends: np.ndarray, radius: float, x, y, z, pixel: float) -> np.ndarray:
    (ax, ay, az), (bx, by, bz) = ends.tolist()
    dx, dy, dz = bx - ax, by - ay, bz - az
    x, y, z = x - np.float32(ax), y - np.float32(ay), z - np.float32(az)
    along = np.clip((x * dx + y * dy + z * dz) / max(dx * dx + dy * dy + dz * dz, 1e-6), 0, 1)
    distance = np.sqrt((x - along * dx) ** 2 + (y - along * dy) ** 2 + (z - along * dz) ** 2)
    return np.clip(0.5 + (radius - distance) / pixel, 0, 1) * min(1.0, 2 * radius / pixel)
