"""Closed lines become the pixels whose centres they enclose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medpfl.data.structures.contours import filled

SQUARE = np.array([[1, 1], [1, 4], [4, 4], [4, 1]], float)


def pixels(*polygons, shape=(6, 6)):
    return [tuple(map(int, at)) for at in np.argwhere(filled([np.array(p, float) for p in polygons], shape))]


def test_a_square_by_hand():
    """Its lines run through pixels' centres: of them those above and on the left are inside."""
    assert pixels(SQUARE) == [(r, c) for r in (1, 2, 3) for c in (1, 2, 3)]
    assert pixels(SQUARE[::-1]) == pixels(SQUARE)
    assert pixels(SQUARE + 0.5) == [(r, c) for r in (2, 3, 4) for c in (2, 3, 4)]
    assert pixels(SQUARE - 1.2) == [(r, c) for r in (0, 1, 2) for c in (0, 1, 2)]  # from -0.2 to 2.8


def test_a_triangle_by_hand():
    """Row and column of what is below its long side are 5.1 together at most."""
    inside = [(r, c) for r in range(1, 5) for c in range(1, 6 - r)]
    assert pixels([[0.5, 0.5], [0.5, 4.6], [4.6, 0.5]]) == inside


def test_a_line_in_a_line_leaves_a_hole():
    hole = [[1.5, 1.5], [1.5, 3.5], [3.5, 3.5], [3.5, 1.5]]
    outer = [[0.5, 0.5], [0.5, 4.5], [4.5, 4.5], [4.5, 0.5]]
    assert (2, 2) not in pixels(outer, hole)
    assert len(pixels(outer, hole)) == 16 - 4
    assert (2, 2) in pixels(outer, hole, [[1.8, 1.8], [1.8, 2.2], [2.2, 2.2], [2.2, 1.8]])


def test_what_lies_beyond_the_image_is_cut_off():
    assert pixels([[-9, -9], [-9, 99], [99, 99], [99, -9]]) == [(r, c) for r in range(6) for c in range(6)]
    assert pixels(SQUARE + 10) == pixels(SQUARE - 10) == []


def test_a_line_that_encloses_nothing_has_no_pixel():
    assert pixels([[2, 2]]) == pixels([[2, 2], [3, 3]]) == pixels([[1.2, 1.2], [1.8, 1.2], [1.8, 1.8]]) == []


SIXTEENTHS = st.integers(-32, 192).map(lambda n: n / 16)


@given(SIXTEENTHS, SIXTEENTHS, SIXTEENTHS, SIXTEENTHS)
def test_two_halves_are_the_whole_and_share_no_pixel(y0, x0, y1, x1):
    """Divided along any line, also through centres."""
    (y0, y1), (x0, x1) = sorted((y0, y1)), sorted((x0, x1))
    whole = filled([np.array([[y0, x0], [y0, x1], [y1, x1], [y1, x0]])], (10, 10))
    one, other = (np.array([[y0, x0], [y0, x1], [y1, x0]]), np.array([[y0, x1], [y1, x1], [y1, x0]]))
    halves = [filled([half], (10, 10)) for half in (one, other)]
    assert not (halves[0] & halves[1]).any()
    assert np.array_equal(halves[0] | halves[1], whole)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(3, 9))
def test_a_disc_has_its_area(dy, dx, radius):
    angles = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    disc = np.stack([12 + dy + radius * np.sin(angles), 12 + dx + radius * np.cos(angles)], axis=1)
    y, x = np.mgrid[:25, :25]
    inside = np.hypot(y - 12 - dy, x - 12 - dx)
    found = filled([disc], (25, 25))
    assert found[inside < radius * 0.999].all()
    assert not found[inside > radius].any()


def test_many_lines_at_once_are_as_one_after_the_other():
    rng = np.random.default_rng(0)
    polygons = [rng.uniform(-2, 12, (n, 2)) for n in (3, 5, 8)]
    each = sum(filled([p], (10, 10)).astype(int) for p in polygons)
    assert np.array_equal(filled(polygons, (10, 10)), each % 2 == 1)
    assert filled(polygons, (10, 10)).any()


def test_as_scikit_image_does():
    """Of a star whose corners lie on no centre."""
    measure = pytest.importorskip("skimage.measure")
    angles = np.arange(11) * 2 * np.pi / 11
    radius = np.where(np.arange(11) % 2, 4.3, 9.1)
    star = np.stack([10.37 + radius * np.sin(angles), 10.41 + radius * np.cos(angles)], axis=1)
    assert np.array_equal(filled([star], (21, 21)), measure.grid_points_in_poly((21, 21), star))
