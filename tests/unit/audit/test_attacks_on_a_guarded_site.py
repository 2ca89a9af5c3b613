"""The attacks that work on an unguarded site, against the contract, the gate and a hospital's policy."""

import time

import pytest
from unguarded import FULLY_CONNECTED, Unguarded

from medpfl.audit.chosen_f import chosen_f
from medpfl.audit.constant_class import constant_class, share_errors
from medpfl.audit.images import recovered
from medpfl.audit.imprint import imprint
from medpfl.audit.replay import replay
from medpfl.audit.victim import Line, victims
from medpfl.site.policy import HOSPITAL


class Hospital(Unguarded):
    """The same site as a hospital has it."""

    @classmethod
    def of(cls, *arguments, **fields):
        return super().of(*arguments, policy=HOSPITAL, **fields)

    def line(self) -> Line:
        return Line(victims(self.federation, "site-1", self.data, HOSPITAL))


@pytest.fixture(autouse=True)
def any_network(monkeypatch):
    """The rule that refuses networks whose first layer connects all is taken away: what holds without it."""
    monkeypatch.setattr("medpfl.site.many_patients.unusual", lambda model: "")


@pytest.fixture(scope="module")
def hospital():
    return Hospital.of(**FULLY_CONNECTED)


def test_imprint_brings_back_nothing_at_once_or_walking(hospital):
    line = hospital.line()
    made, _ = imprint(line, hospital.known, hospital.probe(), 1)
    assert not made
    assert 0 < line.answered < line.asked


def test_statistics_under_a_chosen_f_bring_back_next_to_nothing():
    """The set is published, so f needs no fingerprint: what holds is that statistics are given once, and repeats."""
    victim = Hospital.of("d-fedap", personal="nothing", **FULLY_CONNECTED)
    line = victim.line()
    made = chosen_f(line, victim.known, victim.probe(), 255, time.monotonic() + 120)
    assert recovered(made, victim.truth.images).recognisable == 0
    assert line.answered <= 1 + HOSPITAL.repeats


def test_constant_classes_give_shares_and_no_counts(hospital):
    line = hospital.line()
    shares, way = constant_class(line, hospital.known)
    errors = share_errors(shares, hospital.truth.labels, 11)
    assert way != "at once"
    assert line.answered < line.asked
    assert all(error is None or error > 1 / 63 / 2 for error in errors.values())


@pytest.mark.parametrize("rounds", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_replays_are_answered_as_often_as_the_policy_says(rounds):
    victim = Hospital.of(**FULLY_CONNECTED | {"rounds": rounds})
    kinds = {kind.what: kind for kind in replay(victim.line(), victim.known, times=10)}
    for kind in kinds.values():
        assert kind.answered <= kind.allowed <= 1 + HOSPITAL.repeats, kind.what
    assert kinds["the measures of other weights"].answered == 1 + HOSPITAL.repeats  # it is really tried
