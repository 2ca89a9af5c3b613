"""A model of two values: a site's distance is that of a point in the plane from where it started."""

import pytest
import torch
from tiny import config

from medpfl.core.channels import Channel
from medpfl.core.messages import Message, Update
from medpfl.core.parameters import distance
from medpfl.server.magnitude import check_magnitudes

SENT = {"a": torch.tensor([1.0, 1.0])}


def at(*points):
    """Messages to and answers of sites that end at these points."""
    sites = [f"site-{i + 1}" for i in range(len(points))]
    messages = {s: Message("train", 4, dict(SENT)) for s in sites}
    return messages, [Update(s, 4, {"a": torch.tensor(p)}) for s, p in zip(sites, points, strict=True)]


def checked(*points, **fields):
    used, told, _ = check_magnitudes(config(sites=len(points), **fields), *at(*points))
    return {u.site: u.tensors["a"].tolist() for u in used}, [(f.site, f.round, f.reason) for f in told]


# Distances 5, 1 and 2 from (1, 1): a 3-4-5 triangle and steps along the axes.
NEAR = ([4.0, 5.0], [2.0, 1.0], [1.0, 3.0])


def test_distance_over_all_tensors():
    sent = {"w": torch.zeros(2, 2), "b": torch.tensor([1.0])}
    returned = {"w": torch.tensor([[1.0, 1.0], [1.0, 1.0]]), "b": torch.tensor([6.0]), "statistics/x": torch.ones(9)}
    assert distance(sent, returned) == pytest.approx(29**0.5)


def test_overflow_is_infinite():
    assert distance({"w": torch.tensor([-3e38])}, {"w": torch.tensor([3e38])}) == float("inf")


def test_the_usual_pass_unchanged():
    assert checked(*NEAR) == ({"site-1": [4.0, 5.0], "site-2": [2.0, 1.0], "site-3": [1.0, 3.0]}, [])


def test_a_thousand_times_larger_is_refused_by_name():
    # Distance 2000; the others' median is 2.
    used, told = checked(*NEAR, [2001.0, 1.0], large_updates="refuse", large_factor=100)
    assert list(used) == ["site-1", "site-2", "site-3"]
    ((site, round_, reason),) = told
    assert (site, round_) == ("site-4", 4)
    assert reason == (
        "its update is 1e+03 times as far from what it was sent as the others' (median); 100 times is the limit"
    )


def test_a_large_update_does_not_raise_its_own_limit():
    # 300 against a median of 1.5.
    used, told = checked([301.0, 1.0], [2.0, 1.0], [1.0, 3.0], large_updates="refuse", large_factor=100)
    assert list(used) == ["site-2", "site-3"]
    assert told[0][0] == "site-1"


def test_exactly_the_limit_passes():
    assert checked([11.0, 1.0], [3.0, 1.0], [1.0, 3.0])[1] == []
    assert checked([11.5, 1.0], [3.0, 1.0], [1.0, 3.0])[1] != []


def test_clipped_to_the_limit_along_its_own_direction():
    used, told = checked([301.0, 401.0], [2.0, 1.0], [1.0, 2.0], large_updates="clip", large_factor=10)
    # Distance 500 along (3, 4) / 5, the others' median 1: back to (1, 1) + 10 * (3, 4) / 5.
    assert used["site-1"] == pytest.approx([7.0, 9.0])
    assert list(used) == ["site-1", "site-2", "site-3"]
    assert [(site, reason.rpartition("; ")[2]) for site, _, reason in told] == [
        ("site-1", "it was scaled back to 10 times")
    ]


def test_by_default_five_times_is_the_most():
    used, told = checked([100.0, 1.0], [2.0, 1.0], [1.0, 2.0], [0.0, 1.0])  # 99 times the median
    assert used["site-1"] == pytest.approx([6.0, 1.0])
    assert "scaled back to 5 times" in told[0][2]


def test_what_cannot_be_scaled_is_refused():
    messages, updates = at([-3e38, 1.0], [2.0, 1.0], [1.0, 2.0])
    messages["site-1"].tensors["a"] = torch.tensor([3e38, 1.0])
    used, told, _ = check_magnitudes(config(large_updates="clip"), messages, updates)
    assert [u.site for u in used] == ["site-2", "site-3"]
    assert "inf times" in told[0].reason


@pytest.mark.parametrize(
    "points",
    [
        ([1e6, 1.0], [2.0, 1.0]),  # two cannot outvote each other
        ([2.0, 1.0], [1.0, 1.0], [1.0, 1.0]),  # the others did not move
    ],
)
def test_no_measure_no_limit(points):
    used, told = checked(*points)
    assert len(used) == len(points)
    assert told == []


def test_accept_accepts():
    assert checked(*NEAR, [2001.0, 1.0], large_updates="accept")[1] == []


def with_control(points, sizes, **fields):
    """Who is used, and what came of each in a channel whose mean the server takes."""
    messages, updates = at(*points)
    for update, size in zip(updates, sizes, strict=True):
        update.tensors["control/a"] = torch.tensor([size])
    means = [Channel("control", True, {}, ("train",), "controls", joined="mean")]
    used, told, shares = check_magnitudes(config(sites=len(points), **fields), messages, updates, means)
    return {u.site: u.tensors["control/a"].item() for u in used}, [f.site for f in told], shares


def test_where_an_update_is_refused_the_others_channels_are_measured_by_each_other():
    far, near = [2001.0, 1.0], [2.0, 1.0]
    found = with_control([far, near, near, near], [1.0, 1.0, 2.0, 100.0], large_updates="refuse", large_factor=10)
    assert found == ({"site-2": 1.0, "site-3": 2.0}, ["site-1", "site-4"], {})


def test_two_that_are_left_do_not_outvote_each_other_in_a_channel():
    far, near = [2001.0, 1.0], [2.0, 1.0]
    found = with_control([far, near, near], [1.0, 1.0, 100.0], large_updates="refuse", large_factor=10)
    assert found == ({"site-2": 1.0, "site-3": 100.0}, ["site-1"], {})


def test_what_is_scaled_back_in_a_channel_is_told_as_a_share():
    near = [2.0, 1.0]
    used, told, shares = with_control([near] * 3, [2.0, 2.0, 80.0], large_updates="clip", large_factor=10)
    assert (used["site-3"], told, shares) == (20.0, ["site-3"], {"site-3": {"control": 0.25}})


def test_what_is_scaled_back_in_two_channels_is_told_of_both():
    messages, updates = at(*[[2.0, 1.0]] * 3)
    for update, size in zip(updates, [1.0, 1.0, 40.0], strict=True):
        update.tensors.update({"control/a": torch.tensor([size]), "other/a": torch.tensor([size])})
    means = [Channel(name, True, {}, ("train",), name, joined="mean") for name in ("control", "other")]
    _, told, shares = check_magnitudes(config(large_updates="clip", large_factor=10), messages, updates, means)
    assert [f.site for f in told] == ["site-3", "site-3"]
    assert shares == {"site-3": {"control": 0.25, "other": 0.25}}
