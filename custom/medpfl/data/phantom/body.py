"""One body: a few numbers, and from them the surfaces of lungs, mediastinum and skin.

Lengths are in mm, in the patient's coordinates as DICOM has them: x to the left, y to the back, z to the head. The
origin is the middle of the chest at the level of the lung bases. Surfaces are signed distances, rough and negative
inside; x, y and z may be any arrays that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SQUARENESS = 2.3
"""Exponent of the superellipse that chests are; 2 is an ellipse."""


@dataclass(frozen=True)
class Body:
    """What differs from patient to patient."""

    half_width: float
    """Of the thoracic cavity at its widest."""
    half_depth: float
    height: float
    """Of the lungs, from the deepest recess to the apex."""
    fat: float
    muscle: float
    breast: float
    """0 to 1."""
    dome: float
    """Height of the right diaphragm above the lung bases."""
    heart: float
    """Scale of the heart, about 1."""
    lung_hu: float
    """Healthy lung at middle depth."""
    gradient_hu: float
    """Lung at the back above lung at middle depth: blood and tissue sink."""
    vessels: int
    """Ends of the vessels in each lung."""

    @property
    def outer_width(self) -> float:
        """Half-width of the whole body."""
        return self.half_width + self.muscle + self.fat

    @property
    def outer_depth(self) -> float:
        """Half-depth of the whole body."""
        return self.half_depth + self.muscle + self.fat


def draw_body(rng: np.random.Generator) -> Body:
    """A body at random. Deep inspiration makes lungs taller and thinner in density, and the diaphragm flatter."""
    size, inspiration = rng.normal(0, 1), rng.random()
    return Body(
        half_width=float(135 + 6 * np.clip(size, -2, 2) + rng.normal(0, 2)),
        half_depth=float(89 + 5 * np.clip(size, -2, 2) + rng.normal(0, 3)),
        height=float(230 + 9 * np.clip(size, -2, 2) + 38 * inspiration),
        fat=float(rng.uniform(7, 26)),
        muscle=float(rng.uniform(15, 22)),
        breast=float(max(0.0, rng.uniform(-1, 1))),
        dome=float(78 - 32 * inspiration + rng.normal(0, 4)),
        heart=float(rng.uniform(0.9, 1.12)),
        lung_hu=float(-806 - 68 * inspiration + np.clip(rng.normal(0, 4), -6, 6)),
        gradient_hu=float(rng.uniform(16, 34)),
        vessels=int(rng.integers(240, 480)),
    )


def cavity(body: Body, x, y, z) -> np.ndarray:
    """The inside of the ribs: a barrel that closes at the apex."""
    t = np.clip(z / body.height, 0, 1)
    half_width = np.maximum(body.half_width * (1 - t**3.2) ** 0.55, 2)
    half_depth = np.maximum(body.half_depth * (1 - t**4.5) ** 0.5, 2)
    return _superellipse(x, y - 9 * t**2, half_width, half_depth)


def skin(body: Body, x, y, z) -> np.ndarray:
    """The whole body, arms raised."""
    t = np.clip(z / body.height, 0, 1.15)
    narrowing = np.clip((t - 0.72) / 0.43, 0, 1) ** 2
    distance = _superellipse(x, y, body.outer_width * (1 - 0.16 * narrowing), body.outer_depth * (1 - 0.22 * narrowing))
    if body.breast:
        centre = (0.5 * body.outer_width, -0.74 * body.outer_depth, 0.4 * body.height)
        radii = (58, 22 + 32 * body.breast, 62)
        distance = np.minimum(distance, ellipsoid(np.abs(x), y, z, centre, radii))
    return distance


def diaphragm(body: Body, x, y) -> np.ndarray:
    """Height of its two domes, the right above the left; they fall to 0 where they meet the ribs."""
    x, y = x / body.half_width, y / body.half_depth
    right = 1 - ((x + 0.48) / 0.66) ** 2 - ((y + 0.12) / 1.12) ** 2
    left = 0.8 * (1 - ((x - 0.5) / 0.62) ** 2 - ((y + 0.12) / 1.12) ** 2)
    return body.dome * np.sqrt(np.clip(np.maximum(right, left), 0, 1))


def heart(body: Body, x, y, z) -> np.ndarray:
    """An ellipsoid that lies to the left, its tip to the front."""
    x, y = x - 0.15 * body.half_width, y + 0.3 * body.half_depth
    x, y = 0.85 * x - 0.53 * y, 0.53 * x + 0.85 * y
    radii = tuple(body.heart * radius for radius in (62, 45, 58))
    return ellipsoid(x, y, z, (0, 0, 0.16 * body.height + 0.4 * body.dome), radii)


def mediastinum(body: Body, x, y, z) -> np.ndarray:
    """What lies between the lungs, from the breastbone to the spine."""
    depth, t = y / body.half_depth, np.clip(z / body.height, 0, 1)
    middle = np.abs(x) - (7 + 20 * np.exp(-(((depth - 0.1) / 0.5) ** 2)) + 5 * t)
    spine = np.hypot(x, np.minimum(y - 0.74 * body.half_depth, 0)) - 22
    return np.minimum(np.minimum(middle, spine), heart(body, x, y, z) - 3)


def lungs(body: Body, x, y, z) -> np.ndarray:
    """Both lungs: the cavity above the diaphragm without the mediastinum."""
    above = 0.75 * (np.maximum(diaphragm(body, x, y), 0) - z)
    return np.maximum(np.maximum(cavity(body, x, y, z), above), -mediastinum(body, x, y, z))


def ellipsoid(x, y, z, centre: tuple[float, ...], radii: tuple[float, ...]) -> np.ndarray:
    """An ellipsoid along the axes."""
    parts = [((p - c) / r) ** 2 for p, c, r in zip((x, y, z), centre, radii, strict=True)]
    return (np.sqrt(parts[0] + parts[1] + parts[2]) - 1) * min(radii)


def _superellipse(x, y, half_width, half_depth) -> np.ndarray:
    """Distance along the ray from the middle."""
    power = np.abs(x) ** _SQUARENESS * half_width**-_SQUARENESS + np.abs(y) ** _SQUARENESS * half_depth**-_SQUARENESS
    level = np.maximum(power, 1e-6) ** (1 / _SQUARENESS)
    return np.sqrt(x * x + y * y) * (1 - 1 / level)
