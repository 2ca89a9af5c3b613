"""Ranks in which equal values share theirs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import rankdata

from medpfl.core.ranks import midranks

VALUES = st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 5e-324, 1 / 3, 2.0, np.inf])


@given(arrays(float, array_shapes(min_dims=2, max_dims=2, min_side=0), elements=VALUES))
def test_they_are_scipys(rows):
    assert np.array_equal(midranks(rows), rankdata(rows, axis=1).reshape(rows.shape))


def test_by_hand():
    assert midranks(np.array([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])).tolist() == [
        [3.5, 1.0, 3.5, 2.0],
        [2.5, 2.5, 2.5, 2.5],
    ]
