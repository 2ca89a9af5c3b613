"""What results say of their own figures."""

from types import SimpleNamespace

import pytest

from medpfl.engine.results import _hardly_tested
from medpfl.tasks import TASKS


def final(n, low, high, measure="dice"):
    gain = {"difference": (low + high) / 2, "low": low, "high": high}
    return {"test": {"selected": {"n": n}}, "verdict": {"gain": {measure: gain}}}


def notes(task, **sites):
    return _hardly_tested(SimpleNamespace(learned=TASKS[task]), SimpleNamespace(final=sites))


def test_a_verdict_of_a_mean_over_few_cases_is_said_to_be_unsure():
    sites = {"a": final(3, 0.1, 0.3), "b": final(3, -0.1, 0.3), "c": final(20, 0.1, 0.3), "d": final(19, -0.3, -0.1)}
    (said,) = notes("segmentation", **sites)
    assert said.startswith(
        "Fewer than 20 test cases say that taking part makes a difference at a (3), d (19): the interval"
    )


@pytest.mark.parametrize(
    "site",
    [
        {"test": {"selected": None}},
        {"test": {"selected": {"n": None}}, "verdict": {"gain": {"dice": {"low": 1, "high": 2}}}},
        {"test": {"selected": {"n": 3}}},
        {"test": {"selected": {"n": 3}}, "verdict": {"gain": None}},
        {"test": {"selected": {"n": 3}}, "verdict": {"gain": {"dice": None}}},
    ],
)
def test_without_a_verdict_nothing_is_said(site):
    assert notes("segmentation", a=site) == []


def test_shares_of_cases_have_intervals_that_hold():
    assert notes("classification", a=final(3, 0.1, 0.3, "accuracy")) == []
