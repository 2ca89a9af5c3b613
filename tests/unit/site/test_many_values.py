"""What a job makes of a site's data is bounded by the site, before any image is read."""

import pytest
import torch

from medpfl.core.errors import UserError
from medpfl.site import words
from medpfl.site.many_values import TooManyValues, read_data, too_many_values
from medpfl.site.policy import HOSPITAL, OPEN, SitePolicy, policy_of

CPU = torch.device("cpu")


class Source:
    """60 pictures of 3 channels and 8 x 8 pixels, which nobody may open more often than is said."""

    def __init__(self, opened=0):
        self.left = opened

    def values(self, name):
        return 60 * 3 * 8 * 8

    def site(self, name, device):
        assert self.left, "the data were opened"
        self.left -= 1
        return f"the data of {name}"


class Unknown(Source):
    values = None


class NotCounted(Source):
    def values(self, name):
        raise AssertionError("nobody bounds it")


def test_data_within_the_limit_are_read():
    for policy, source in (
        (SitePolicy(data_values=11_520), Source(1)),
        (HOSPITAL, Source(1)),
        (OPEN, NotCounted(1)),
        (SitePolicy(data_values=1), Unknown(1)),
    ):
        assert read_data(policy, source, "north", CPU) == "the data of north"


def test_data_beyond_it_are_not_opened_and_the_site_reads_why():
    with pytest.raises(TooManyValues) as refused:
        read_data(SitePolicy(data_values=11_519), Source(), "north", CPU)
    said = str(refused.value)
    assert said == (
        "as the job reads this site's data, they are up to 11,520 values (samples x channels x shape; with "
        "masks more), and data_values is 11,519: let it ask for smaller images or fewer (--data-arg size, depth, "
        "slices, spacing, pad or step), of masks also fewer classes, or give the policy data_values=N where memory and "
        "disk are enough for N"
    )
    assert too_many_values(SitePolicy(data_values=11_519), 11_520) == said
    assert not too_many_values(SitePolicy(data_values=11_519), None)


def test_the_server_learns_the_limit_and_not_how_much_there_is():
    for limit in (1, 11_519):
        with pytest.raises(TooManyValues) as refused:
            read_data(SitePolicy(data_values=limit), Source(), "north", CPU)
        told = refused.value.told
        assert words.listed(told, ()) == told
        assert f"more than {limit} values" in told and told.endswith("(data_values)")
        assert "11520" not in told and "11,520" not in told and "60" not in told
    large = words.MANY_VALUES(float(10**10 + 1))
    assert "1e+10" in large and words.listed(large, ()) == large


@pytest.mark.parametrize("value", [-1, 0.5, "many", None, [1], 1e400])
def test_what_is_no_number_of_values_is_refused_by_name(value):
    with pytest.raises(UserError, match=r"^medpfl\.json: policy, data_values: "):
        policy_of({"data_values": value}, HOSPITAL, "medpfl.json")


def test_a_hospital_has_a_limit_and_a_simulation_has_none():
    assert HOSPITAL.data_values == 10**10
    assert OPEN.data_values == 0
    assert policy_of({"data_values": 0}, HOSPITAL, "medpfl.json").data_values == 0
    assert policy_of({"data_values": 1e9}, HOSPITAL, "medpfl.json").data_values == 10**9
