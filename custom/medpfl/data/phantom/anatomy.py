"""A patient without noise: what every point of a chest reads in HU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medpfl.data.phantom.body import Body, cavity, diaphragm, draw_body, ellipsoid, heart, lungs, mediastinum, skin
from medpfl.data.phantom.parenchyma import Parenchyma, draw_parenchyma
from medpfl.data.phantom.tubes import Tubes, grow, paint, path

AIR, FAT, SKIN, MUSCLE, BLOOD, CORD, WALL = -1000.0, -95.0, 10.0, 50.0, 42.0, 30.0, 20.0
LIVER, SPLEEN, STOMACH, CARTILAGE, MARROW, CORTEX = 58.0, 48.0, 30.0, 110.0, 190.0, 620.0
"""HU, without contrast medium; WALL is that of an airway."""
_TEXTURE = 13.0
"""Standard deviation of healthy lung around its mean, in HU."""
_AWAY = 99.0
"""A distance in mm that is outside of anything."""


@dataclass(frozen=True, eq=False)
class Patient:
    """A chest that can be looked at with any grid."""

    body: Body
    parenchyma: Parenchyma
    great_vessels: Tubes
    vessels: Tubes
    airways: Tubes

    def render(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The chest in planes of no thickness.

        Args:
            x, y, z: ascending float32 coordinates in mm; x and y evenly spaced, and so far apart in both.

        Returns:
            HU as (z, y, x) float32; the share of each voxel that is lung, without its vessels and airways; and where
            lung is emphysema, bool.
        """
        body, pixel = self.body, float(x[1] - x[0])
        grid = x, y[:, None], z[:, None, None]
        texture, holes = self.parenchyma.at(x, y, z)
        chest, outside = cavity(body, *grid), skin(body, *grid)
        hu = np.full(texture.shape, AIR, np.float32)
        _couch(hu, body, x, y, pixel)
        _wall(hu, body, chest, outside, texture, pixel)
        _inside(hu, body, grid, chest, pixel)
        _bones(hu, body, grid, chest, outside, pixel)
        paint(self.great_vessels, x, y, z, [(hu, BLOOD)])
        lung = _cover(lungs(body, *grid), pixel)
        depth = (y / body.half_depth)[:, None]
        density = body.lung_hu + body.gradient_hu * depth + _TEXTURE * texture
        _blend(hu, density + holes * (self.parenchyma.hole_hu + 0.4 * _TEXTURE * texture - density), lung)
        paint(self.vessels, x, y, z, [(hu, BLOOD), (lung, 0.0)], keep=1 - 0.6 * holes)
        paint(self.airways.widened(1.15, 1.0), x, y, z, [(hu, WALL), (lung, 0.0)])
        paint(self.airways, x, y, z, [(hu, AIR)])
        return hu, lung, holes > 0.5


def draw_patient(rng: np.random.Generator, share: float) -> Patient:
    """A patient at random, ``share`` of whose lungs is emphysema; nothing else depends on it."""
    body = draw_body(rng)
    d, h = body.half_depth, body.height
    carina = (2.0, 0.16 * d, 0.6 * h)
    trachea = path([(0, 0.02 * d, 1.15 * h), (0, 0.12 * d, 0.8 * h), carina], 8.5)
    right, left = (_trees(rng, body, side, carina) for side in (-1, 1))
    parenchyma = draw_parenchyma(rng, body, share)
    return Patient(body, parenchyma, _great_vessels(body), right[0] + left[0], trachea + right[1] + left[1])


def _great_vessels(body: Body) -> Tubes:
    """Also the gullet, which is as dense."""
    d, h = body.half_depth, body.height
    ascending = path([(-16, -0.1 * d, 0.4 * h), (-20, -0.3 * d, 0.56 * h), (-8, -0.18 * d, 0.68 * h)], 15)
    arch = path([(-8, -0.18 * d, 0.68 * h), (12, 0.1 * d, 0.71 * h), (20, 0.42 * d, 0.66 * h)], 13)
    descending = path([(20, 0.42 * d, 0.66 * h), (21, 0.5 * d, 0.4 * h), (10, 0.52 * d, -30)], 11.5)
    vena_cava = path([(-25, -0.12 * d, 0.4 * h), (-27, -0.16 * d, 0.72 * h), (-20, -0.3 * d, 0.95 * h)], 8.5)
    trunk = path([(10, -0.34 * d, 0.46 * h), (14, -0.1 * d, 0.56 * h)], 14)
    pulmonary = path([(-38, 0.06 * d, 0.54 * h), (14, -0.06 * d, 0.55 * h), (40, 0.16 * d, 0.56 * h)], 10)
    right_neck, left_neck = (
        path([(-10, -0.15 * d, 0.7 * h), (-26, 0, 1.1 * h)], 6),
        path([(12, 0, 0.7 * h), (26, 0, 1.1 * h)], 5),
    )
    gullet = path([(5, 0.36 * d, 1.1 * h), (6, 0.38 * d, 0.5 * h), (4, 0.3 * d, 0)], 6.5)
    return ascending + arch + descending + vena_cava + trunk + pulmonary + right_neck + left_neck + gullet


def _trees(rng: np.random.Generator, body: Body, side: int, carina: tuple[float, ...]) -> tuple[Tubes, Tubes]:
    """Vessels, which are arteries and veins, and airways of one lung; ``side`` is -1 for the right."""
    d, h = body.half_depth, body.height
    arteries, veins = np.array_split(_points_in_lung(rng, body, side, body.vessels), 2)
    vessels = grow((33 * side, 0.14 * d, 0.53 * h), arteries, 1.0) + grow((26 * side, -0.02 * d, 0.44 * h), veins, 1.0)
    hilum = (0.19 * side * body.half_width, 0.14 * d, 0.54 * h)
    bronchi = grow(hilum, _points_in_lung(rng, body, side, 16, margin=30), 1.5)
    return vessels, path([carina, hilum], 6.0) + bronchi


def _points_in_lung(rng: np.random.Generator, body: Body, side: int, count: int, margin: float = 4) -> np.ndarray:
    scale = (side * body.half_width, 2 * body.half_depth, body.height)
    points = (rng.random((count * 20, 3)) - (0, 0.5, 0)) * scale
    return points[lungs(body, *points.T) < -margin][:count]


def _couch(hu: np.ndarray, body: Body, x: np.ndarray, y: np.ndarray, pixel: float) -> None:
    """The table: two thin curved shells with foam between."""
    below = y[:, None] - (body.outer_depth + 4 - x**2 / 900)
    shells = np.minimum(np.abs(below), np.abs(below - 24)) - 1
    _blend(hu, -920.0, _cover(np.abs(below - 12) - 12, pixel))
    _blend(hu, -300.0, 0.8 * _cover(shells, pixel))


def _wall(
    hu: np.ndarray, body: Body, chest: np.ndarray, outside: np.ndarray, texture: np.ndarray, pixel: float
) -> None:
    """Skin, fat, and muscle with fat between, thickest at the shoulders."""
    _blend(hu, SKIN, _cover(outside, pixel))
    _blend(hu, FAT, _cover(outside + 2, pixel))
    lean = _cover(outside + body.fat, pixel) * np.clip(1.7 - 0.8 * texture, 0, 1)
    _blend(hu, MUSCLE, np.maximum(lean, _cover(chest - 6, pixel)))


def _inside(hu: np.ndarray, body: Body, grid: tuple, chest: np.ndarray, pixel: float) -> None:
    """Mediastinum and the organs below the diaphragm, in fat."""
    x, y, z = grid
    _blend(hu, FAT, _cover(chest + 1, pixel))
    _blend(hu, MUSCLE, _cover(heart(body, x, y, z), pixel))
    under = np.maximum(z - diaphragm(body, x, y) + 2, chest + 3)
    behind = np.maximum(under, -mediastinum(body, x, y, z))
    _blend(hu, MUSCLE, 0.8 * _cover(np.maximum(behind, z - 12), pixel))
    _blend(hu, LIVER, _cover(np.maximum(under, 0.35 * y + x - 26), pixel))
    spleen = (0.62 * body.half_width, 0.45 * body.half_depth, 0.0), (42, 34, 48)
    stomach = (0.5 * body.half_width, -0.3 * body.half_depth, -4.0), (48, 42, 44)
    _blend(hu, SPLEEN, _cover(np.maximum(under, ellipsoid(x, y, z, *spleen)), pixel))
    _blend(hu, STOMACH, _cover(np.maximum(under, ellipsoid(x, y, z, *stomach)), pixel))


def _bones(hu: np.ndarray, body: Body, grid: tuple, chest: np.ndarray, outside: np.ndarray, pixel: float) -> None:
    """Ribs that fall to the front, breastbone, shoulder blades and the spine."""
    x, y, z = grid
    pitch = body.height / 10.5
    phase = (z - 0.4 * y) / pitch
    rib = np.hypot(0.6 * pitch * (phase - np.rint(phase)), chest - 5.5) - 4.2
    rib = np.maximum(rib, z - 0.99 * body.height)
    front = np.clip((-0.62 * body.half_depth - y) / 12 + 0.5, 0, 1)
    bone = MARROW + (CORTEX - MARROW) * np.clip(1 + rib / 4.2, 0, 1) ** 2
    _blend(hu, bone + front * (CARTILAGE - bone), _cover(rib, pixel))

    sternum = ellipsoid(x, y, z, (0, -body.half_depth - 4, 0.62 * body.height), (19, 6.5, 0.36 * body.height))
    blade = np.abs(outside + body.fat + 11) - 3.2
    blade = np.maximum(np.maximum(blade, 0.35 * body.outer_depth - y), 0.42 * body.outer_width - np.abs(x))
    blade = np.maximum(blade, np.abs(z - 0.74 * body.height) - 0.24 * body.height)
    _hollow(hu, sternum, pixel)
    _hollow(hu, blade, pixel)

    back, level = 0.74 * body.half_depth, np.abs((z / 27) % 1 - 0.5) * 27
    vertebra = np.hypot(x, 1.15 * (y - back)) - 17
    arch = np.abs(np.hypot(x, y - back - 24) - 12) - 3
    spinous = np.maximum(np.maximum(np.abs(x) - 3.2, np.abs(y - back - 46) - 12), outside + 5)
    transverse = np.maximum(np.abs(y - back - 26 - 0.25 * np.abs(x)) - 4.5, np.abs(np.abs(x) - 20) - 13)
    _blend(hu, CORD, _cover(np.hypot(x, y - back - 24) - 10, pixel))
    disc = level > 10.5
    _blend(hu, np.where(disc, CARTILAGE, MARROW), _cover(vertebra, pixel))
    _blend(hu, CORTEX, _cover(np.where(disc, _AWAY, np.abs(vertebra + 1) - 1), pixel))
    _hollow(hu, arch, pixel)
    for process in (spinous, transverse):
        _hollow(hu, np.where(level < 9, process, _AWAY), pixel)


def _hollow(hu: np.ndarray, distance: np.ndarray, pixel: float) -> None:
    """Bone with marrow inside and a cortex of 2 mm."""
    _blend(hu, MARROW + (CORTEX - MARROW) * np.clip(1 + distance / 2.5, 0, 1), _cover(distance, pixel))


def _cover(distance: np.ndarray, pixel: float) -> np.ndarray:
    """The part of a voxel that lies inside a surface."""
    return np.clip(0.5 - distance / pixel, 0, 1)


def _blend(hu: np.ndarray, value: np.ndarray | float, cover: np.ndarray) -> None:
    hu += cover * (value - hu)
