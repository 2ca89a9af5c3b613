"""Images sorted by class, in shards, of which every site gets some."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medpfl.core.errors import UserError
from medpfl.data.partition.draw import draw
from medpfl.data.partition.spec import PartitionSpec, parse_spec


@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=120),
    sites=st.integers(1, 6),
    each=st.integers(1, 2),
    seed=st.integers(0, 2**40),
)
def test_shards_are_of_one_size_and_of_neighbouring_classes(labels, sites, each, seed):
    labels = np.array(labels)
    parts = draw(PartitionSpec("shards", shards=each), labels, sites, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    size = len(labels) / (sites * each)
    assert all(abs(len(part) - each * size) <= each for part in parts)
    # Of sorted labels a shard has as many classes as there are borders in it, and one.
    borders = len(np.unique(labels)) - 1
    assert sum(len(np.unique(labels[part])) - each for part in parts) <= borders


def test_two_shards_of_ten_classes_are_two_classes_a_site():
    """McMahan et al.: most clients have two digits, and none more where shards fit the classes."""
    labels = np.repeat(np.arange(10), 40)
    parts = draw(parse_spec("shards:2"), labels, 20, 0)
    numbers = [np.bincount(labels[part], minlength=10) for part in parts]
    assert {tuple(sorted(n[n > 0])) for n in numbers} <= {(10, 10), (20,)}
    assert sum(map(np.array, numbers)).tolist() == [40] * 10
    assert sum(len(n[n > 0]) == 2 for n in numbers) >= 15
    images = [part.tolist() for part in parts]
    assert images != [part.tolist() for part in draw(parse_spec("shards:2"), labels, 20, 1)]
    assert sorted(images[0]) != list(range(min(images[0]), max(images[0]) + 1))  # not the file's order


@pytest.mark.parametrize("value", ["", "0", "00", "1.5", "-1", "+2", "²", "a", "9" * 5000])
def test_what_is_no_number_of_shards(value):
    with pytest.raises(UserError, match=r"is no positive whole number; right is e.g. shards:2"):
        parse_spec(f"shards:{value}")
