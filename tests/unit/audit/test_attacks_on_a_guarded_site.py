"""The attacks that work on an unguarded site, against the contract, the gate and a hospital's policy."""

import time
from dataclasses import replace

import pytest
from unguarded import CPU, FULLY_CONNECTED, Unguarded

from medpfl.audit import attempts
from medpfl.audit.attacked import Attacked
from medpfl.audit.chosen_f import chosen_f
from medpfl.audit.constant_class import constant_class, share_errors
from medpfl.audit.images import recovered
from medpfl.audit.imprint import imprint
from medpfl.audit.probe import make_probe
from medpfl.audit.replay import replay
from medpfl.audit.victim import Line, victims
from medpfl.config.run import make_config
from medpfl.engine.federation import Federation
from medpfl.site.policy import HOSPITAL, AuditThresholds, SitePolicy

ANYTHING = SitePolicy(repeats=10**6)
"""Of a site that tells all measures and answers as often as it is asked: what is left is the run's contract."""
BOLD = (
    "contract: task 'train' before the hello: this site has no record of a hello in this run; if its state was "
    "removed, begin a new experiment"
)


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


@pytest.mark.parametrize(
    ("rounds", "participation"), [(1, 1.0), (2, 0.5), pytest.param(5, 1.0, marks=pytest.mark.slow)]
)
def test_replays_are_answered_as_often_as_the_policy_says(rounds, participation):
    victim = Hospital.of(**FULLY_CONNECTED | {"rounds": rounds, "participation": participation})
    kinds = {kind.what: kind for kind in replay(victim.line(), victim.known, times=10)}
    for kind in kinds.values():
        assert kind.answered <= kind.allowed <= 1 + HOSPITAL.repeats, kind.what
    assert kinds["the measures of other weights"].answered == 1 + HOSPITAL.repeats  # it is really tried
    followed = kinds.get("the measures of other weights, in a round that was trained")
    assert (followed and followed.answered) == (HOSPITAL.repeats if participation < 1 else None)


def permissive(algorithm: str = "fedavg", **fields) -> Attacked:
    federation = Federation.of(make_config(algorithm=algorithm, device="cpu", sites=30, rounds=2, **fields))
    data = federation.source.site("site-1", CPU)
    return Attacked(federation, "site-1", data, ANYTHING, AuditThresholds(), 600.0)


@pytest.mark.parametrize("attack", [attempts.constant_class, attempts.known_image])
def test_what_only_a_policy_holds_fails_without_one(attack):
    finding = attack(permissive(**FULLY_CONNECTED))
    assert finding.verdict == "fails", finding
    assert set(finding.refusals) <= {BOLD}, finding  # of a task of training without a greeting


@pytest.mark.slow
@pytest.mark.parametrize("attack", [attempts.constant_class, attempts.known_image])
def test_what_few_repeats_hold_in_a_run_more_runs_give(attack):
    finding = attack(replace(permissive(**FULLY_CONNECTED), policy=SitePolicy(repeats=3)))
    assert finding.verdict == "fails", finding
    assert any("repeats 3 times" in words for words in finding.refusals), finding


@pytest.mark.slow
@pytest.mark.parametrize("policy", [ANYTHING, SitePolicy(repeats=3)], ids=["in one run", "in many"])
def test_personal_batch_norm_is_read_where_only_a_policy_would_hold_it(policy):
    attacked = replace(permissive("fedbn"), policy=policy)
    attacked.probe = make_probe(attacked.known, 5)
    finding = attempts.batch_norm(attacked)
    assert (finding.verdict, len(finding.figures["errors"])) == ("fails", 4), finding
    assert any("repeats 3 times" in words for words in finding.refusals) is (policy != ANYTHING), finding


def test_of_a_hospitals_batch_norm_more_runs_give_nothing():
    attacked = replace(permissive("fedbn"), policy=HOSPITAL)
    attacked.probe = make_probe(attacked.known, 5)
    finding = attempts.batch_norm(attacked)
    assert finding.verdict == "passes" and finding.figures["errors"] == [], finding


def test_the_number_of_a_batch_norm_that_is_known_best_is_told(monkeypatch):
    """It is what the verdict is by: the largest error alone would look like no finding."""
    attacked = permissive("fedbn")
    attacked.probe = object()
    monkeypatch.setattr(attempts.bn, "why_not", lambda *_: None)
    monkeypatch.setattr(attempts.bn, "batch_norm", lambda *_, **__: [attempts.bn.Probed("bn", 0, 1.0, 0.0, 12)])
    monkeypatch.setattr(attempts, "_errors", lambda *_: [3.0, 0.001])
    finding = attempts.batch_norm(attacked)
    assert (finding.verdict, finding.came_back) == ("fails", "2 of 12 numbers, relative errors 0.0010 to 3.0000")


@pytest.mark.parametrize("attack", [attempts.constant_class, attempts.known_image])
def test_measures_are_not_refused_for_want_of_a_greeting(hospital, attack):
    attacked = Attacked(hospital.federation, "site-1", hospital.data, HOSPITAL, AuditThresholds(), 600.0)
    finding = attack(attacked)
    assert finding.verdict == "passes"
    assert not [words for words in finding.refusals if "before the hello" in words and words != BOLD], finding
