"""Answers that cannot be used: the site is named and the others' mix is as if it had been away."""

import numpy as np
import pytest
import torch
from plans import hello, joined, make_plan, next_values, round_of, scored, statistics, trained
from tiny import same

from medpfl.core.messages import Failure, Message, NotAsked, Update
from medpfl.core.parameters import StateError
from medpfl.core.server_state import ServerState
from medpfl.server.rounds import advance
from medpfl.server.updates import check_update


def without(tensors, name):
    return {k: t for k, t in tensors.items() if k != name}


def bad_update(kind, plan):
    good = trained(plan, "site-2", 1, 99)
    shared = good.tensors
    tensors = {
        "nan": shared | {"0.bias": torch.tensor([1.0, float("nan")])},
        "infinite": shared | {"0.bias": torch.tensor([1.0, float("inf")])},
        "shape": shared | {"0.weight": torch.ones(3, 2)},
        "missing": without(shared, "0.bias"),
        "extra": shared | {"backdoor": torch.ones(1)},
        "personal": shared | {"1.weight": torch.ones(2)},
        "statistics": shared | statistics(0.0),
        "empty": {},
    }
    if kind in (of_another := {"a later round": 7, "an earlier round": 0}):
        return trained(plan, "site-2", of_another[kind], 99)
    return Update("site-2", 1, tensors[kind], good.metrics)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "shared entry '0.bias' has non-finite values"),
        ("infinite", "shared entry '0.bias' has non-finite values"),
        ("shape", "shared entry '0.weight' has shape [3, 2], expected [2, 2]"),
        ("missing", "shared entry '0.bias' is missing (1 in all)"),
        ("extra", "entry 'backdoor' does not belong to the shared state (1 in all)"),
        ("personal", "entry '1.weight' does not belong to the shared state (1 in all)"),
        ("statistics", "statistics that were not asked for"),
        ("empty", "shared entry '0.weight' is missing (2 in all)"),
        ("a later round", "an answer for round 7, but round 1 is under way"),
        ("an earlier round", "an answer for round 0, but round 1 is under way"),
    ],
)
def test_a_bad_update_harms_nobody(kind, reason):
    plan = make_plan("fedbn")
    start = joined(plan, samples=(10, 20, 30))
    others = [trained(plan, "site-1", 1, 1), trained(plan, "site-3", 1, 5)]
    state = advance(plan, start, [bad_update(kind, plan), *others], 1.5)
    assert [(f.site, f.reason) for f in state.failures] == [("site-2", reason)]
    alone = round_of(plan, start, 1, None, 5)
    assert all(same(state.shared[s], alone.shared[s]) for s in plan.config.site_names)
    assert state.history == alone.history


def test_what_is_refused_has_travelled_too():
    """Malformed, and far larger than the others: the update counts as sent, its message as received, once."""
    plan = make_plan("fedbn", large_updates="refuse")
    start = joined(plan, samples=(10, 20, 30))
    usual = advance(plan, start, [trained(plan, s, 1, 2) for s in plan.config.site_names], 0).traffic
    added = {way: (usual[way] - start.traffic[way]) // 3 for way in usual}

    def others():
        return [trained(plan, s, 1, 2) for s in ("site-1", "site-3")]

    for odd in (bad_update("nan", plan), trained(plan, "site-2", 1, 1e9)):
        state = advance(plan, start, [odd, *others()], 0)
        assert [f.site for f in state.failures] == ["site-2"]
        assert state.history[-1]["participants"] == ["site-1", "site-3"]
        assert state.traffic == usual
    twice = advance(plan, start, [trained(plan, "site-2", 1, 2), trained(plan, "site-2", 1, 2), *others()], 0)
    assert twice.traffic["received_bytes"] == usual["received_bytes"]
    assert twice.traffic["sent_bytes"] == usual["sent_bytes"] + added["sent_bytes"]
    unable = advance(plan, start, [Failure("site-2", 1, "it could not"), *others()], 0).traffic
    assert unable == usual | {"sent_bytes": usual["sent_bytes"] - added["sent_bytes"]}
    away = advance(plan, start, [NotAsked("site-2", 1, "not connected"), *others()], 0).traffic
    assert away == {way: usual[way] - added[way] for way in usual}
    silent = advance(plan, start, others(), 0).traffic
    assert silent == {way: usual[way] - added[way] for way in usual}
    nothing = Update("site-2", 1, "no tensors", {})
    assert (
        advance(plan, start, [nothing, *others()], 0).traffic["sent_bytes"] == usual["sent_bytes"] - added["sent_bytes"]
    )


def test_answers_nobody_asked_for():
    plan = make_plan()
    replies = [trained(plan, s, 1, 2) for s in ("site-1", "site-2", "site-3")]
    stranger = trained(plan, "site-9", 1, 99)
    state = advance(plan, joined(plan), [stranger, *replies], 0)
    assert [(f.site, f.reason) for f in state.failures] == [("site-9", "an answer that was not asked for")]
    assert next_values(plan, state) == [2.0] * 3


def test_a_second_answer_does_not_count_twice():
    plan = make_plan()
    replies = [trained(plan, "site-1", 1, 0), trained(plan, "site-2", 1, 3), trained(plan, "site-2", 1, 3)]
    state = advance(plan, joined(plan), replies, 0)
    assert next_values(plan, state) == [1.5] * 3
    assert state.failures[0].site == "site-2"
    assert "second answer" in state.failures[0].reason


@pytest.mark.parametrize(
    "wrong",
    [
        statistics(0.0, layer="other"),
        {k: torch.ones(5, dtype=torch.float64) for k in statistics(0.0)},
        statistics(float("nan")),
        statistics(0.0, variance=-1.0),
        without(statistics(0.0), "statistics/1/variance"),
        {"statistics/1": torch.ones(2)},
        {},
    ],
    ids=["layer", "channels", "nan", "negative variance", "half", "name", "none"],
)
@pytest.mark.parametrize("liar", ["site-1", "site-3"])
def test_statistics_that_cannot_be_compared_are_a_failure_of_their_site(wrong, liar):
    plan = make_plan("fedap", min_sites=1)
    replies = [hello(s, **(wrong if s == liar else statistics(i))) for i, s in enumerate(plan.config.site_names)]
    state = advance(plan, ServerState(), replies, 0)
    assert state.failures
    assert set(state.samples) | {f.site for f in state.failures} == set(plan.config.site_names)
    assert not np.isnan(state.weights).any()
    if liar != "site-1":
        assert set(state.samples) == {"site-1", "site-2"}


@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({"train_loss": 1.0}, "validation"),
        ({"train_loss": float("nan"), "validation": None}, "train_loss"),
        ({"train_loss": "1", "validation": None}, "train_loss"),
        ({"train_loss": 1.0, "validation": {**scored(0.5), "accuracy": 2.0}}, "validation.accuracy"),
        ({"train_loss": 1.0, "validation": None, "patients": 3}, "patients"),
    ],
)
def test_malformed_metrics_are_refused_by_name(metrics, named):
    plan = make_plan()
    state = joined(plan)
    names = plan.config.site_names
    good = [trained(plan, s, 1, 1) for s in names[1:]]
    bad = Update(names[0], 1, dict(trained(plan, names[0], 1, 9).tensors), metrics)
    state = advance(plan, state, [bad, *good], 0)
    [failure] = state.failures
    assert failure.site == names[0]
    assert f"metric '{named}'" in failure.reason
    assert state.history[0]["participants"] == names[1:]


USED = {"candidate": "as published", "round": 1, "weight": 1.0}
TOLD = {"alone": None, "alone_round": 1, "used": {"selected": USED, "last": USED}, "gain": None}
INVERTED = {"accuracy": {"difference": 0.5, "low": 0.9, "high": 0.1}, "balanced_accuracy": None, "auroc": None}


def test_what_is_tested_is_of_a_round_that_there_was():
    plan = make_plan(rounds=3)
    metrics = {"test": {"selected": None, "last": None}, "tested": {"selected": 4, "last": 3}}
    with pytest.raises(StateError, match=r"metric 'tested\.selected': round 4 of 3"):
        check_update(plan, {"site-1": Message("test", 3, {}, {})}, Update("site-1", 3, {}, metrics), [])


@pytest.mark.parametrize(
    ("alone", "change", "named"),
    [
        ("yes", {}, ""),
        ("no", {}, "in this run no site trains alone"),
        ("yes", {"alone_round": 10}, "round 10 of 3"),
        ("yes", {"used": {"selected": USED, "last": USED | {"round": 10}}}, "round 10 of 3"),
        ("yes", {"gain": INVERTED}, "a difference outside its interval"),
        ("yes", {"gain": {"auroc": None}}, "metric 'verdict.gain.accuracy': missing"),
        ("yes", {"gain": {}}, "metric 'verdict.gain.accuracy': missing"),
    ],
)
def test_a_verdict_is_one_of_this_run(alone, change, named):
    plan = make_plan(alone=alone, rounds=3)
    message = Message("test", 3, {}, {"selected_round": 1})
    metrics = {"test": {"selected": None, "last": None}, "tested": {"selected": 1, "last": 3}, "verdict": TOLD | change}
    update = Update("site-1", 3, {}, metrics)
    if not named:
        assert check_update(plan, {"site-1": message}, update, []).metrics == metrics
        return
    with pytest.raises(StateError, match=named):
        check_update(plan, {"site-1": message}, update, [])
