"""What the lung crop keeps: all lung with air in it, however tight the field of view."""

from functools import cache

import numpy as np
import pytest
from make_dicom import write_series

from medpfl.data.kinds.scans.lung import find_lungs
from medpfl.data.kinds.scans.preprocessing import AIR, Preprocessing, pipeline
from medpfl.data.kinds.scans.series import find_series

SPACING = (2.5, 2.5, 2.5)
EDGE, SLICES, BOTTOM, TOP = 128, 60, 6, 48


def thorax(lung=-850.0, sides=(0.32, 0.68)):
    volume, lungs = _thorax(lung, sides)
    return volume.copy(), lungs.copy()


@cache
def _thorax(lung, sides):
    """(X, Y, Z) HU and where lung is: two lungs that taper to their tips, a windpipe, a body, noise, air around it."""
    rng = np.random.default_rng(0)
    x, y, z = np.ogrid[:EDGE, :EDGE, :SLICES]
    x, y = x / EDGE, y / EDGE
    volume = np.full((EDGE, EDGE, SLICES), -1000.0)
    volume[np.broadcast_to(((x - 0.5) / 0.42) ** 2 + ((y - 0.5) / 0.32) ** 2 < 1, volume.shape)] = 40
    middle, half = (BOTTOM + TOP) / 2, (TOP - BOTTOM) / 2
    width = np.sqrt(np.clip(1 - ((z - middle) / half) ** 2, 0, None))
    lungs = np.zeros(volume.shape, bool)
    for side in sides:
        lungs |= ((x - side) / 0.14) ** 2 + ((y - 0.5) / 0.22) ** 2 < width**2
    volume[lungs] = lung
    volume[(lungs & (rng.random(volume.shape) < 0.04))] = 30  # vessels
    trachea = (np.hypot(x - 0.5, y - 0.5) < 0.03) & (z > middle)
    trachea |= (abs(x - 0.5) < 0.1) & (abs(y - 0.5) < 0.02) & (abs(z - middle) < 2)
    volume[trachea] = -1000
    return volume + rng.normal(0, 15, volume.shape), lungs


def straight(folder, preprocessing):
    """A series' volume as the crop gets it, and its voxels' size."""
    (series,) = find_series(folder).values()
    data = {"image": [str(f) for f in series.files], "kind": "dicom"}
    for step in pipeline(preprocessing).transforms[:6]:
        data = step(data)
    return data["image"].as_tensor()[0].numpy(), data["image"].pixdim.tolist()


def covers(box, mask):
    inside = np.zeros(mask.shape, bool)
    inside[tuple(slice(*ends) for ends in box)] = True
    return not (mask & ~inside).any()


def test_on_a_full_field_of_view_all_lung_is_kept_and_most_of_the_windpipe_is_not():
    volume, lung = thorax()
    found = find_lungs(volume, SPACING)
    assert covers(found.box, lung) and found.cut == 0 and 0.99 < found.kept < 1
    (x0, x1), (y0, y1), (z0, z1) = found.box
    assert x0 > 20 and x1 < 108 and y0 > 30 and y1 < 98 and z0 > 2 and z1 < TOP + 10


def _tight(volume, lung, sides):
    return volume[sides], lung[sides]


@pytest.mark.parametrize("hu", [-850, *(pytest.param(hu, marks=pytest.mark.slow) for hu in (-930, -700))])
@pytest.mark.parametrize(
    "sides",
    [np.s_[30:98], np.s_[26:102, 30:98], np.s_[:, 28:100], np.s_[36:92, 36:92], np.s_[36:], np.s_[36:, 36:]],
    ids=["right and left", "all round", "front and back", "far inside", "right", "right and front"],
)
def test_lungs_that_the_images_edge_cuts_are_kept_in_every_slice(hu, sides):
    volume, lung = _tight(*thorax(hu), sides)
    found = find_lungs(volume, SPACING)
    assert covers(found.box, lung)
    assert (found.cut > 0.2) == bool(lung[[0, -1]].any() or lung[:, [0, -1]].any())


@pytest.mark.parametrize("radius", [40, 36, 32])
def test_lungs_that_the_scanners_circle_cuts_are_kept(radius):
    volume, lung = thorax()
    x, y, _ = np.ogrid[:EDGE, :EDGE, :1]
    outside = np.broadcast_to(np.hypot(x - 64, y - 64) > radius, lung.shape)
    volume[outside] = AIR
    found = find_lungs(volume, SPACING)
    assert covers(found.box, lung & ~outside) and found.cut > 0.2


def test_a_tumour_beside_the_edge_is_kept():
    volume, lung = thorax()
    tumour = np.zeros_like(lung)
    tumour[30:34, 60:68, 40:44] = True
    volume[tumour] = 60
    found = find_lungs(volume[30:98], SPACING)
    assert covers(found.box, (tumour | lung)[30:98])


@pytest.mark.parametrize("sides, field", [((0.32,), np.s_[:]), ((0.68,), np.s_[:]), ((0.32,), np.s_[30:98])])
def test_a_side_without_air_is_not_cut_away(sides, field):
    volume, _ = thorax(sides=sides)
    _, both = thorax()
    assert covers(find_lungs(volume[field], SPACING).box, both[field])


def head():
    """A skull with sinuses, nasal cavity and mastoid cells."""
    x, y, z = np.ogrid[:100, :100, :70]
    ball = np.hypot(np.hypot((x - 50) / 30, (y - 50) / 38), (z - 35) / 45)
    volume = np.full((100, 100, 70), -1000.0)
    volume[ball < 1], volume[ball < 0.93], volume[ball < 0.87] = 20, 900, 35
    for cx, cy, cz, r in ((44, 22, 12, 5), (56, 22, 12, 5), (50, 20, 18, 4), (28, 60, 10, 3), (72, 60, 10, 3)):
        volume[(x - cx) ** 2 + (y - cy) ** 2 + (z - cz) ** 2 < r**2] = -1000
    return volume + np.random.default_rng(0).normal(0, 8, volume.shape)


@pytest.mark.parametrize("field", [np.s_[:], np.s_[22:78], np.s_[22:78, 14:86], np.s_[30:70, 20:80], np.s_[:, :, 30:]])
def test_a_head_has_no_lungs(field):
    assert find_lungs(head()[field], (2.5, 2.5, 2.5)) is None


def test_a_table_in_emptiness_is_no_lung():
    volume, lung = thorax()
    x, y, _ = np.ogrid[:EDGE, :EDGE, :1]
    body = np.broadcast_to(((x / EDGE - 0.5) / 0.42) ** 2 + ((y / EDGE - 0.5) / 0.32) ** 2 < 1, lung.shape)
    volume[~body] = AIR
    volume[20:108, 108:114] = -940
    found = find_lungs(volume, SPACING)
    assert covers(found.box, lung) and found.box[1][1] < 100 and found.cut == 0


@pytest.mark.parametrize("tilt", [-20, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("field", [np.s_[:], np.s_[30:98]], ids=["full", "tight"])
def test_a_tilted_scan_keeps_its_lungs(tmp_path, tilt, field):
    volume, lung = thorax()
    volumes = []
    for name, values in (("scan", volume), ("lung", np.where(lung, 0, -1000))):
        write_series(tmp_path / name, values[field][..., ::2].transpose(2, 1, 0), spacing=(2.5, 2.5, 5), tilt=tilt)
        volumes.append(straight(tmp_path / name, Preprocessing()))
    (scan, spacing), (where, _) = volumes
    assert covers(find_lungs(scan, spacing).box, where > -200)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_real_lungs_on_a_tight_field_of_view(lidc, place):
    """The field ends within both lungs; all that was lung on the full one still is."""
    whole, spacing = straight(lidc[place], Preprocessing(spacing=(1.5, 1.5, 0)))
    full = find_lungs(whole, spacing)
    (x0, x1), (y0, y1), (z0, z1) = full.box
    assert full.cut == 0
    for by in (15, 30):
        tight = whole[x0 + by : x1 - by, max(0, y0 - 5) : y1 + 5]
        found = find_lungs(tight, spacing)
        assert found.box[2] == (z0, z1) and found.cut > 0.5
        assert found.box[0] == (0, tight.shape[0])


def test_the_pipeline_says_what_it_cropped(tmp_path):
    volume, _ = thorax()
    write_series(tmp_path, volume.transpose(2, 1, 0), spacing=(2.5, 2.5, 2.5))
    item = {"image": [str(f) for f in sorted(tmp_path.iterdir())], "kind": "dicom"}
    whole = pipeline(Preprocessing()).transforms[:-1]
    for step in whole:
        item = step(item)
    assert item["image_lungs"].cut == 0 and item["image"].shape == (16, 1, 64, 64)
