"""What decides a draw of a partition: its seed and purpose, the least that a site has, and how many there are."""

import numpy as np
import pytest

from medpfl.core.errors import UserError
from medpfl.data.partition.draw import draw, draw_like, draw_printed
from medpfl.data.partition.published_counts import COUNTS
from medpfl.data.partition.spec import PartitionSpec, parse_spec

ALIKE = np.zeros(100, dtype=np.int64)
"""Of one class, whose images go to the sites one after another: joined, the sites have them in the order drawn."""


def test_each_partition_and_number_of_sites_has_a_draw_of_its_own():
    specs = ("dirichlet:0.1", "dirichlet:0.5", "iid")
    assert len({tuple(np.concatenate(draw(parse_spec(s), ALIKE, n, 0))) for s in specs for n in (4, 5)}) == 6


def test_each_seed_and_purpose_has_a_draw_of_its_own_after_the_same_counts():
    drawn = (draw_like(np.ones((2, 1)), ALIKE, seed, purpose) for seed in (0, 1) for purpose in ("one", "other"))
    assert len({tuple(np.concatenate(parts)) for parts in drawn}) == 4


@pytest.mark.parametrize("table", COUNTS)
def test_a_table_is_drawn_anew_by_each_seed_from_just_as_many_images_as_it_has(table):
    labels = np.repeat(np.arange(8), np.sum(COUNTS[table], axis=0))
    drawn = [draw_printed(table, labels, "abcdefgh", seed) for seed in (0, 1)]
    for parts in drawn:
        assert [np.bincount(labels[part], minlength=8).tolist() for part in parts] == COUNTS[table]
    assert set(drawn[0][0]) != set(drawn[1][0])
    needed = np.sum(COUNTS[table], axis=0)[0]
    with pytest.raises(UserError, match=f"needs {needed} training images of class a, there are {needed - 1}: use"):
        draw_printed(table, labels[1:], "abcdefgh", 0)


def test_the_images_of_one_table_are_not_among_the_others():
    """Site 1 has 5 and 11 of class 0."""
    labels = np.repeat(np.arange(8), 2500)
    few, more = ({*draw_printed(table, labels, "abcdefgh", 0)[0]} & {*range(2500)} for table in COUNTS)
    assert (len(few), len(more)) == (5, 11) and not few <= more


def test_shares_are_drawn_again_only_where_a_site_has_less_than_the_least():
    labels, spec = np.arange(60) % 6, PartitionSpec("dirichlet", 1.0)
    for seed in range(5):
        first = [part.tolist() for part in draw(spec, labels, 3, seed)]
        least = min(map(len, first))
        assert [part.tolist() for part in draw(spec, labels, 3, seed, least=least)] == first
        again = draw(spec, labels, 3, seed, least=least + 1)
        assert [part.tolist() for part in again] != first


def test_every_site_can_have_its_full_share_as_the_least():
    """Four images of two sites, of which a draw gives each two more often than not after a few."""
    for seed in range(10):
        assert [len(part) for part in draw(PartitionSpec("dirichlet", 1.0), ALIKE[:4], 2, seed, least=2)] == [2, 2]


def test_of_the_draws_that_give_the_least_the_first_is_taken(monkeypatch):
    def sizes(redraws):
        monkeypatch.setattr("medpfl.data.partition.draw.REDRAWS", redraws)
        spec = PartitionSpec("dirichlet", 1.0)
        return [[len(part) for part in draw(spec, ALIKE, 2, seed, least=20)] for seed in range(30)]

    assert sizes(1000) == sizes(50)


@pytest.mark.parametrize("sites", [2, 4])
def test_no_site_of_the_datas_own_is_left_out_or_made_up(sites):
    with pytest.raises(UserError, match=f"--sites {sites}: the data set has images of 3 sites"):
        draw(parse_spec("natural"), ALIKE[:6], sites, 0, np.array(["c", "a", "b"] * 2))
