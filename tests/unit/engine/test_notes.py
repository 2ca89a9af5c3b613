"""What results say of their own figures."""

from types import SimpleNamespace

import pytest
from tiny import config

from medpfl.core.server_state import ServerState
from medpfl.engine.results import _hardly_tested, _next_to_nothing_found, _notes
from medpfl.engine.verdict import missed_rounds
from medpfl.tasks import TASKS


def final(n, low, high, measure="dice"):
    gain = {"difference": (low + high) / 2, "low": low, "high": high}
    return {"test": {"selected": {"n": n}}, "verdict": {"gain": {measure: gain}}}


def notes(task, described=None, **sites):
    return _hardly_tested(SimpleNamespace(learned=TASKS[task]), SimpleNamespace(final=sites), described or {})


def test_a_verdict_of_a_mean_over_few_cases_is_said_to_be_unsure():
    sites = {"a": final(3, 0.1, 0.3), "b": final(3, -0.1, 0.3), "c": final(20, 0.1, 0.3), "d": final(19, -0.3, -0.1)}
    (said,) = notes("segmentation", **sites)
    assert said.startswith(
        "Fewer than 20 test cases say that taking part makes a difference at a (3), d (19): the interval"
    )


def test_many_cases_of_few_patients_are_as_unsure():
    described = {"a": {"test_patients": 6, "test": 300}, "b": {"test_patients": 24}, "c": {"test": 12}}
    sites = {name: final(24, 0.1, 0.3) for name in described}
    (said,) = notes("segmentation", described, **sites)
    assert said.startswith("Fewer than 20 test patients say that taking part makes a difference at a (6), c (12):")


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


@pytest.mark.parametrize(("took_part", "said"), [(4, True), (17, True), (18, False), (20, False)])
def test_a_gain_over_a_model_that_was_trained_alone_in_few_rounds_is_said_to_be_unsure(took_part, said):
    history = tuple({"participants": ["b", *(["a"] if k < took_part else [])]} for k in range(20))
    of = {"a": final(30, 0.1, 0.3), "b": final(30, 0.1, 0.3)}
    found = missed_rounds(ServerState(phase="done", round=20, final=of, history=history))
    begins = f"Took part in fewer than the 20 rounds: a ({took_part}). A site trains alone"
    assert [text.startswith(begins) for text in found] == [True] * said
    silent = {name: {"test": {"selected": {"n": 30}}} for name in of}
    assert missed_rounds(ServerState(phase="done", round=20, final=silent, history=history)) == []


def test_a_network_that_finds_next_to_nothing_is_said_to_be_of_no_use():
    sites = {"a": final(30, 0.1, 0.3), "b": final(30, 0.1, 0.3), "c": {"test": {"selected": None}}}
    sites["a"]["test"]["selected"]["dice"], sites["b"]["test"]["selected"]["dice"] = 0.0, 0.4
    run, state = SimpleNamespace(learned=TASKS["segmentation"]), SimpleNamespace(final=sites)
    (said,) = _next_to_nothing_found(run, state)
    assert said.startswith("What a uses finds next to nothing (Dice below 0.05): as it is, it is of no use there.")
    assert _next_to_nothing_found(SimpleNamespace(learned=TASKS["classification"]), state) == []


def test_sites_whose_policy_tells_nothing_are_not_said_to_lack_data_or_to_have_been_away():
    run = config("fedavg", sites=3)
    none = {"test": {"selected": None, "last": None}}
    final = {
        "site-1": none | {"tested": {"selected": 1, "last": 2}},
        "site-2": none | {"tested": {"selected": 2, "last": 2}},
        "site-3": {"test": {"selected": {"n": 30}}, "tested": {"selected": 1, "last": 2}},
    }
    sites = {"site-1": {"validation": None}, "site-2": {"validation": None}, "site-3": {"validation": {"n": 3}}}
    state = ServerState(phase="done", round=2, best_round=2, final=final, history=({"sites": sites},))
    said = _notes(run, state, {"sites": {"site-2": {"test": 0}}})
    assert said == [
        "No test data at site-2: no row in the tables, and not counted over sites.",
        "No test data, fewer test patients than its least_patients, or a policy that tells no figures, at site-1: no "
        "row in the tables, and not counted over sites.",
        "site-1 tells no validation and uses its model of round 1.",
        "site-3 was absent when round 2 was validated, or its file is damaged; its last model was tested instead.",
    ]


@pytest.mark.parametrize(
    ("method", "fields", "said"),
    [
        ("fedblend", {"alone": "no"}, ["FedBlend is less than itself with --alone no"]),
        ("fedblend", {"alone": "no", "use": "received"}, []),
        ("fedblend", {"alone": "yes"}, []),
        ("fedavg", {"alone": "no"}, []),
        ("local", {}, []),
    ],
)
def test_a_method_that_would_choose_says_that_it_cannot(method, fields, said):
    found = _notes(config(method, **fields), ServerState(phase="train"), {})
    assert [note.partition(":")[0] for note in found] == said
