"""No answer ends a run or reaches the results as it is: whatever stands in it, it becomes a failure of its site."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from plans import final_answer, hello, joined, make_plan, next_values, round_of, scored, statistics, trained, validated

from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Update
from medpfl.core.parameters import StateError
from medpfl.core.server_state import ServerState
from medpfl.engine.results import build_results
from medpfl.flare.transport.payload import INFO, update_of
from medpfl.server.rounds import QuorumNotMet, advance, messages
from medpfl.server.updates import in_words

HUGE = 10**5000
SECONDS = {"total": 0.0, "start": 0.0}


def repr_of(value):
    """A test's name; a number of 5,000 digits and a long text have none that Python would write."""
    return "huge" if value is HUGE or len(str(value)) > 20 else repr(value)


def results(plan, state):
    """results.json as it would be written, read again; fails on what JSON does not have."""
    built = build_results(plan, state, env="inprocess", data={}, seconds=SECONDS)
    return json.loads(json.dumps(built, allow_nan=False))


def answered(plan, state, bad):
    """The state after a round in which site-1 sends this and the others 1 and 2."""
    return advance(plan, state, [bad, trained(plan, "site-2", 1, 1), trained(plan, "site-3", 1, 2)], 0.5)


def with_metrics(**change):
    return lambda update: replace(update, metrics={**update.metrics, **change})


def with_tensors(**change):
    names = {"weight": "0.weight", "bias": "0.bias"}
    changed = {names.get(name, name): value for name, value in change.items()}
    return lambda update: replace(update, tensors={**update.tensors, **changed})


ATTACKS = {
    "seconds are NaN": (lambda u: replace(u, seconds=float("nan")), "seconds: Input should be a finite number"),
    "seconds are negative": (lambda u: replace(u, seconds=-1.0), "seconds: Input should be greater than or equal to 0"),
    "seconds are text": (lambda u: replace(u, seconds="7"), "seconds: Input should be a valid number"),
    "seconds are many": (
        lambda u: replace(u, seconds=1e300),
        "seconds: Input should be less than or equal to",
    ),
    "round is an array": (lambda u: replace(u, round=np.array([1, 1])), "its round is no number of a round"),
    "round is huge": (lambda u: replace(u, round=HUGE), "its round is no number of a round"),
    "round is true": (lambda u: replace(u, round=True), "its round is no number of a round"),
    "metrics are a list": (lambda u: replace(u, metrics=[1]), "metric '': Input should be a valid dictionary"),
    "metrics have an integer key": (lambda u: replace(u, metrics={**u.metrics, 7: 1}), "Keys should be strings"),
    "a metric is huge": (with_metrics(restored_round=HUGE), "metric 'restored_round'"),
    "a loss is near infinity": (with_metrics(train_loss=1e308), "metric 'train_loss'"),
    "a number is none of the method's": (with_metrics(numbers={"<b>\n": 1.0}), "none of the method's"),
    "a measure is an object": (with_metrics(validation={"n": {"n": {}}}), "metric 'validation.n'"),
    "tensors are a list": (lambda u: replace(u, tensors=[1]), "no tensors by name"),
    "a tensor is text": (with_tensors(bias="x"), "an entry is no tensor with a name"),
    "a tensor has a number for a name": (lambda u: replace(u, tensors={**u.tensors, 7: torch.ones(1)}), "no tensor"),
    "a tensor is sparse": (with_tensors(weight=torch.ones(2, 2).to_sparse()), "entry '0.weight' is no plain tensor"),
    "a tensor is complex": (with_tensors(bias=torch.ones(2, dtype=torch.complex64)), "has type torch.complex64"),
    "a tensor is wider": (with_tensors(bias=torch.ones(2).double()), "has type torch.float64, expected torch.float32"),
    "a tensor is 0-d": (with_tensors(bias=torch.tensor(1.0)), "shape [], expected [2]"),
    "a tensor's name is long": (with_tensors(**{"x" * 10**6: torch.ones(1)}), "entry 'xxx"),
    "a tensor's name is more than a line": (with_tensors(**{"x\n\x1b[31m": torch.ones(1)}), "entry 'x"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_answer_cannot_end_the_run(attack):
    change, reason = ATTACKS[attack]
    plan = make_plan()
    state = answered(plan, joined(plan), change(trained(plan, "site-1", 1, 9)))
    [failure] = results(plan, state)["failures"]
    assert (failure["site"], failure["round"]) == ("site-1", 1)
    assert reason in failure["reason"]
    assert len(failure["reason"]) < 600
    assert failure["reason"].isprintable()
    assert next_values(plan, state) == [1.5] * 3
    assert {t.dtype for t in state.shared["site-1"].values()} == {torch.float32}


@pytest.mark.parametrize(("alpha", "taken"), [(0.5, True), (1.0, True), (1e30, False), (-0.1, False)])
def test_a_methods_number_lies_where_it_can(alpha, taken):
    plan = make_plan("apfl")
    state = answered(plan, joined(plan), with_metrics(numbers={"alpha": alpha})(trained(plan, "site-1", 1, 9)))
    assert [f.site for f in state.failures] == ([] if taken else ["site-1"])
    assert taken or "is not between 0 and 1" in state.failures[0].reason


def test_numbers_of_numpy_are_plain_in_the_results():
    plan = make_plan()
    state = answered(plan, joined(plan), with_metrics(train_loss=np.float64(2.5))(trained(plan, "site-1", 1, 9)))
    assert state.failures == ()
    assert type(state.history[0]["sites"]["site-1"]["train_loss"]) is float


@pytest.mark.parametrize("number", [10**12, HUGE, 0, -5, True, 3.0, "7", None, np.int64(3)], ids=repr_of)
def test_a_number_of_samples_that_cannot_be(number):
    plan = make_plan()
    replies = [hello("site-1", number), hello("site-2", 10), hello("site-3", 30)]
    state = advance(plan, ServerState(), replies, 0)
    [failure] = results(plan, state)["failures"]
    assert failure["site"] == "site-1"
    assert "metric 'samples.train'" in failure["reason"]
    assert state.samples == {"site-2": 10, "site-3": 30}


def test_sizes_are_those_of_the_hello():
    plan = make_plan()
    start = joined(plan, samples=(10, 10, 10))
    again = replace(hello("site-1", 10**6), round=1)
    state = advance(plan, start, [again, trained(plan, "site-2", 1, 1), trained(plan, "site-3", 1, 2)], 0)
    assert state.samples == start.samples
    more = trained(plan, "site-1", 2, 9)
    more = replace(more, metrics={**more.metrics, "samples": {"train": 10**6, "validation": 0, "test": 0}})
    replies = [more, trained(plan, "site-2", 2, 1), trained(plan, "site-3", 2, 2)]
    state = advance(plan, state, replies, 0)
    assert "metric 'samples'" in state.failures[-1].reason
    assert state.samples == start.samples


@pytest.mark.parametrize("value", [1e300, -1e300, float("inf"), float("nan")])
def test_statistics_that_would_overflow(value):
    plan = make_plan("fedap")
    replies = [hello(s, **statistics(v)) for s, v in zip(plan.config.site_names, (value, 1.0, 2.0), strict=True)]
    state = advance(plan, ServerState(), replies, 0)
    assert [f.site for f in state.failures] == ["site-1"]
    assert "beyond 1e+30" in state.failures[0].reason
    assert np.isfinite(results(plan, state)["mixing"]["matrix"]).all()


def test_the_largest_statistics_that_pass_give_finite_weights():
    plan = make_plan("fedap")
    replies = [hello(s, **statistics(v)) for s, v in zip(plan.config.site_names, (1e30, -1e30, 2.0), strict=True)]
    state = advance(plan, ServerState(), replies, 0)
    assert state.failures == ()
    np.testing.assert_allclose(state.weights.sum(1), 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_first_site_does_not_say_what_statistics_look_like(order):
    plan = make_plan("fedap")
    replies = [hello("site-1", **statistics(0.0, layer="odd"))]
    replies += [hello(s, **statistics(m)) for s, m in (("site-2", 1.0), ("site-3", 2.0))]
    state = advance(plan, ServerState(), [replies[i] for i in order], 0)
    assert set(state.samples) == {"site-2", "site-3"}
    [failure] = state.failures
    assert failure.site == "site-1"
    assert failure.reason == "statistics/odd/mean is none of what travels as 'statistics'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb\x1b[2Jc", "a b [2Jc"),
        ("x" * 10**6, "x" * 500 + " ..."),
        (HUGE, "a reason that is no text (int)"),
        (None, "a reason that is no text (NoneType)"),
    ],
    ids=repr_of,
)
def test_reasons_are_one_short_line(text, said):
    assert in_words(text) == said
    plan = make_plan()
    state = answered(plan, joined(plan), Failure("site-1", HUGE, text))
    assert [(f.site, f.round, f.reason) for f in state.failures] == [("site-1", 1, said)]


huge = st.builds(lambda: HUGE)  # hypothesis cannot write the number itself
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    huge,
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.sampled_from([np.float64(1), np.int64(1), np.nan, object(), [], {}, set(), 1j]),
    arrays(scalar_dtypes(), array_shapes(max_side=2), elements=None),
)
keys = st.one_of(
    st.text(max_size=3),
    st.integers(),
    st.sampled_from(["train_loss", "validation", "samples", "train", "test", "tested", "n", "accuracy", "0.weight"]),
)
anything = st.recursive(
    odd, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)), max_leaves=8
)
tensors = st.one_of(
    anything,
    st.dictionaries(
        st.sampled_from(["0.weight", "0.bias", "1.weight", "1.bias", "statistics/1/mean", "statistics/1/variance", 7]),
        st.one_of(
            anything,
            st.sampled_from([torch.ones(2), torch.ones(2, 2), torch.ones(2, 2).to_sparse(), torch.tensor(1.0)]),
            st.sampled_from([torch.ones(2, 2, device="meta"), torch.full((2, 2), float("nan")), torch.ones(2).bool()]),
        ),
    ),
)


@st.composite
def answers(draw, plan, good):
    """A good answer in which anything may stand at any place."""
    changed = {"round": anything, "tensors": tensors, "metrics": anything, "seconds": anything}
    chosen = draw(st.sets(st.sampled_from(sorted(changed)), min_size=1))
    bad = replace(good, **{name: draw(changed[name]) for name in chosen})
    if isinstance(good.metrics, dict) and draw(st.booleans()):
        place = draw(st.sampled_from(sorted(good.metrics)))
        bad = replace(bad, metrics={**good.metrics, place: draw(anything), draw(keys): draw(anything)})
    return bad


def phase_of(plan, phase):
    """A state in this phase and the sites' good answers to its messages."""
    means = (0.0, 1.0, 3.0) if plan.config.mixer.under_model else (None,) * 3
    names = plan.config.site_names
    greetings = [hello(s, **(statistics(m) if m is not None else {})) for s, m in zip(names, means, strict=True)]
    if phase == "prepare":
        return ServerState(), greetings
    state = advance(plan, ServerState(), greetings, 0)
    while state.phase != phase:
        if state.phase == "train":
            state = round_of(plan, state, 1, 2, 3, validation=0.5 if state.round else None)
        else:
            state = advance(plan, state, [validated(s, state.round, 0.5) for s in names], 0)
    if phase == "train":
        return state, [trained(plan, s, 1, 1) for s in names]
    if phase == "validate":
        return state, [validated(s, state.round, 0.5) for s in names]
    return state, [final_answer(s, state.round) for s in names]


@pytest.mark.parametrize("phase", ["prepare", "train", "validate", "test"])
@pytest.mark.parametrize("algorithm", [pytest.param("fedavg", marks=pytest.mark.slow), "fedap"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nothing_that_a_site_sends_ends_a_run(algorithm, phase, data):
    plan = make_plan(algorithm, rounds=1, min_sites=1)
    state, good = phase_of(plan, phase)
    replies = [data.draw(answers(plan, good[0])), *good[1:]]
    after = advance(plan, state, replies, 0.0)
    written = results(plan, after)
    assert all(f["site"] == "site-1" for f in written["failures"])
    assert len(json.dumps(written)) < 10**5
    for shared in after.shared.values():
        assert all(bool(torch.isfinite(t).all()) for t in shared.values())
    if after.phase != "done":
        messages(plan, after)


@settings(max_examples=25)
@given(data=st.data())
def test_where_only_odd_answers_come_the_quorum_is_not_met(data):
    plan = make_plan(rounds=1)
    state, good = phase_of(plan, "train")
    odd = [replace(good[0], tensors=data.draw(anything)), replace(good[1], metrics=data.draw(odd_metrics))]
    with pytest.raises(QuorumNotMet) as refused:
        advance(plan, state, [*odd, Failure("site-3", 1, data.draw(st.text()))], 0)
    assert len(str(refused.value)) < 3000


odd_metrics = anything.filter(lambda m: not isinstance(m, dict) or "train_loss" not in m)
models = st.builds(
    dict,
    params=st.one_of(
        st.none(),
        st.dictionaries(
            st.one_of(st.sampled_from(["0.weight", "0.bias"]), st.integers()),
            st.one_of(anything, arrays(st.sampled_from([np.float32, np.complex64, object, ">f4", "U1"]), (2, 2))),
        ),
        anything,
    ),
    meta=st.one_of(
        st.just({}),
        st.dictionaries(keys, anything, max_size=2),
        anything.map(lambda info: {INFO: info}),
        st.fixed_dictionaries({"metrics": anything, "seconds": anything}).map(lambda info: {INFO: info}),
    ),
    current_round=st.one_of(st.none(), st.integers(0), huge),
)


@settings(max_examples=80)
@given(fields=models)
def test_any_model_of_flare_is_an_update_or_a_failure_in_words(fields):
    model = FLModel(ParamsType.FULL, {}, meta={})
    for name, value in fields.items():  # past FLARE's own checks, which differ from version to version
        setattr(model, name, value)
    plan = make_plan()
    state = joined(plan)
    try:
        reply = update_of("site-1", model)
    except StateError as error:
        assert str(error).startswith("malformed answer: ")
        reply = Failure("site-1", 1, str(error))
    assert isinstance(reply, Update | Failure)
    after = answered(plan, state, reply)
    assert [f.site for f in after.failures] == ["site-1"]
    results(plan, after)


def test_a_newcomers_odd_answers_are_named():
    from medpfl.server.newcomer import Welcome

    plan = make_plan(rounds=1)
    state, _ = phase_of(plan, "validate")
    state = replace(state, phase="done")
    welcome = Welcome(plan, state, {}, 1)
    for odd_answer in (Update("new", 1, {}, [1]), Update("new", np.ones(2)), Update("new", 1, {}, {}, HUGE)):
        with pytest.raises(UserError, match=r"^new: "):
            welcome.run(["new"], lambda asked, answer=odd_answer: [answer])


def test_good_answers_are_not_touched():
    plan = make_plan(rounds=2)
    state = round_of(plan, joined(plan), 1, 2, 3)
    state = round_of(plan, state, 1, 2, 3, validation=0.25)
    assert state.failures == ()
    assert state.history[0]["sites"]["site-1"]["validation"] == scored(0.25)
    assert list(state.history[0]["sites"]["site-1"]["validation"]) == list(scored(0.25))
