"""Patients and scanners: densities, emphysema, slices and noise are what the tables say."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import binary_erosion

from medpfl.data.phantom.anatomy import draw_patient
from medpfl.data.phantom.body import heart, lungs
from medpfl.data.phantom.scanner import reconstruct, scan
from medpfl.data.phantom.six_centres import CENTRES, LUNG, SHARP, SMOOTH
from medpfl.data.phantom.tubes import grow

CLEAN = replace(CENTRES[3], noise=0.0, air_error=0.0, field_of_view=380.0)


def patient(share=0.0, seed=0):
    return draw_patient(np.random.default_rng(seed), share)


def scanned(who, centre, matrix=96):
    return scan(who, centre, matrix, np.random.default_rng(5))


def where(surface, who, image, increment, deep):
    """Mask of the voxels that lie ``deep`` mm inside a surface."""
    z, y, x = (
        origin + step * np.arange(n)
        for origin, step, n in zip(
            reversed(image.origin), (increment, image.pixel, image.pixel), image.hu.shape, strict=True
        )
    )
    return surface(who.body, x, y[:, None], z[:, None, None]) < -deep


def test_densities_of_a_chest():
    who = patient()
    image = scanned(who, CLEAN)
    lung = image.hu[where(lungs, who, image, CLEAN.increment, 8)]
    assert np.median(lung) == pytest.approx(who.body.lung_hu, abs=10)
    assert np.median(image.hu[where(heart, who, image, CLEAN.increment, 10)]) == 50
    assert (image.hu[:, :3] < -990).all()
    assert image.hu.max() > 300
    assert 2000 < 1e-3 * np.sum(where(lungs, who, image, CLEAN.increment, 0)) * image.pixel**2 * CLEAN.increment < 6500
    assert image.emphysema == 0


def test_the_back_of_the_lung_is_denser():
    who = patient()
    image = scanned(who, CLEAN)
    inside = where(lungs, who, image, CLEAN.increment, 8)
    y = image.origin[1] + image.pixel * np.arange(image.hu.shape[1])
    front, back = (inside & (side * y > 25)[:, None] for side in (-1, 1))
    assert np.median(image.hu[back]) - np.median(image.hu[front]) > who.body.gradient_hu / 2


@pytest.mark.parametrize("share", [0.12, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.02, 0.3))])
def test_low_attenuation_area_is_the_truth_on_a_clean_scan(share):
    who = patient(share, seed=3)
    image = scanned(who, CLEAN, matrix=160)
    assert image.emphysema == pytest.approx(share, rel=0.25)
    inside = where(lungs, who, image, CLEAN.increment, 3)
    measured = np.mean(image.hu[inside] < -930)
    assert measured == pytest.approx(image.emphysema, rel=0.3)


@pytest.mark.slow
def test_emphysema_prefers_the_upper_lobes():
    upper = []
    for seed in range(4):
        who = patient(0.15, seed)
        image = scanned(who, CLEAN)
        inside = where(lungs, who, image, CLEAN.increment, 3)
        low = (image.hu < -940) & inside
        z = image.origin[2] + CLEAN.increment * np.arange(len(image.hu))
        above = z > 0.5 * who.body.height
        upper.append(low[above].sum() / inside[above].sum() - low[~above].sum() / inside[~above].sum())
    assert np.mean(upper) > 0.05


@pytest.mark.slow
def test_truth_does_not_depend_on_the_scanner():
    who = patient(0.2)
    shares = [scanned(who, centre, 64).emphysema for centre in CENTRES]
    assert shares == pytest.approx([0.2] * len(CENTRES), rel=0.1)


def test_thick_slices_are_means_of_thin_ones():
    who = patient(0.1)
    thin = replace(CLEAN, thickness=1.25, increment=1.25, kernel=SMOOTH)
    thick = replace(thin, thickness=5.0, increment=5.0)
    fine, coarse = scanned(who, thin, 48), scanned(who, thick, 48)
    # Both start at the same height, and the mean of 4 planes lies between the 2nd and the 3rd.
    means = (fine.hu[2:-2:4] + fine.hu[3:-1:4]) / 2
    same = min(len(means), len(coarse.hu) - 1)
    away = np.abs(means[:same] - (coarse.hu[:same] + coarse.hu[1 : same + 1]) / 2.0)
    assert np.median(away) < 15
    assert coarse.hu.astype(float).std(axis=0).mean() < fine.hu.astype(float).std(axis=0).mean()


@pytest.mark.slow
@pytest.mark.parametrize("centre", CENTRES, ids=lambda centre: centre.name)
def test_noise_is_as_declared(centre):
    measured = []
    for seed in range(6):
        who = patient(seed=seed)
        image = scanned(who, centre, 64)
        inside = binary_erosion(where(heart, who, image, centre.increment, 12), np.ones((1, 3, 3)))
        measured.append(image.hu[inside].std())
    assert np.median(measured) == pytest.approx(centre.noise, rel=0.2)


def test_kernels_shape_noise_and_edges():
    flat, rng = np.zeros((40, 64, 64), np.float32), np.random.default_rng(0)
    neighbours = {}
    for kernel in (SMOOTH, SHARP, LUNG):
        noise = reconstruct(flat, 1.0, kernel, 20.0, rng)
        assert noise.std() == pytest.approx(20, rel=0.02)
        neighbours[kernel.name] = np.corrcoef(noise[:, :, :-1].ravel(), noise[:, :, 1:].ravel())[0, 1]
    assert neighbours["SMOOTH"] > neighbours["SHARP"] > neighbours["LUNG"]

    step = np.zeros((1, 64, 64), np.float32)
    step[:, :, 16:48] = 100
    smooth, sharp = (reconstruct(step, 1.0, kernel, 0.0, rng) for kernel in (SMOOTH, LUNG))
    assert smooth.max() < 101 < 105 < sharp.max()
    assert smooth.mean() == pytest.approx(step.mean(), rel=1e-4)


def test_air_error_leaves_water_right():
    who = patient()
    off = replace(CLEAN, air_error=20.0)
    right, wrong = scanned(who, CLEAN, 48), scanned(who, off, 48)
    moved = wrong.hu.astype(int) - right.hu
    assert np.abs(moved[right.hu >= 0]).max() == 0
    assert np.abs(moved[np.abs(right.hu + 1000) < 5] - 20).max() <= 1


def test_trees_taper_and_reach_every_tip():
    tips = np.random.default_rng(0).uniform(-50, 50, (60, 3))
    tree = grow((0, 0, 0), tips, 1.0)
    assert {tuple(end) for end in tree.ends[:, 1].tolist()} == {tuple(p) for p in tips.astype(np.float32).tolist()}
    starts = {tuple(p): radius for p, radius in zip(tree.ends[:, 1].tolist(), tree.radii, strict=True)}
    for (start, _), radius in zip(tree.ends.tolist(), tree.radii, strict=True):
        assert radius <= starts.get(tuple(start), np.inf)
    assert tree.radii.min() == 1
