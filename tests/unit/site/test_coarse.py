"""What a hospital's measures say of single cases, for tasks with several labels or structures."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_guard import Guarded
from tiny import config, plan_of, sites_of

from medpfl.core.channels import Channel, Entry
from medpfl.core.messages import Update
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.engine.results import _notes
from medpfl.site.coarse import coarsened, of_enough
from medpfl.site.gate import Gate
from medpfl.site.policy import HOSPITAL, OPEN
from medpfl.tasks import TASKS

MULTI_LABEL = TASKS["multi-label"]


def told(scores, positive, policy):
    """Of 30 cases with two labels; the second, rare one is of the cases given, under scores of the server's choice."""
    labels = np.stack([np.arange(30) % 2, np.isin(np.arange(30), positive)], 1)
    measured = MULTI_LABEL.pooled([(np.stack([np.full(30, 0.5), scores], 1), labels)])
    return coarsened({"validation": measured}, policy)["validation"]


def test_a_rare_label_tells_nothing_of_its_one_case():
    """Its AUC is the place of that case among the others, which names it where the server has made the scores."""
    scores = np.linspace(0, 1, 30)
    first, second = (told(scores, [case], OPEN)["auroc_by_label"][1] for case in (3, 4))
    assert (round(29 * first), round(29 * second)) == (3, 4)
    for positive in ([3], [4], []):
        assert told(scores, positive, HOSPITAL)["auroc_by_label"] == [None, None]


@pytest.mark.parametrize("name", ["dice_by_class", "auroc_by_label"])
def test_each_structure_and_label_stays(name):
    measured = {"n": 40, "dice": 0.8123, name: [0.9123, None, 0.5]}
    found = coarsened({"test": {"selected": measured, "last": None}}, HOSPITAL)["test"]["selected"]
    assert found == {"n": 40, "dice": 0.81, name: [None, None, None]}


def enough(metrics, judges=60, loss=True, trained=60):
    return of_enough(metrics, HOSPITAL, judges, trained=trained, chooses=False, loss=loss)


def by_a_hospital(positive):
    """The multi-label answer of 60 cases as its guard lets it leave: a common label, and a rare one of these cases."""
    labels = np.stack([np.arange(60) % 2, np.isin(np.arange(60), positive)], 1)
    scores = np.stack([np.full(60, 0.5), np.linspace(0, 1, 60)], 1)
    metrics = {"train_loss": None, "validation": MULTI_LABEL.measured((scores, labels))}
    return coarsened(enough(metrics), HOSPITAL)["validation"]


def test_the_mean_auc_tells_nothing_of_a_rare_labels_case():
    """Under scores of the server's choice it was that case's place among all."""
    told = [by_a_hospital([case]) for case in (3, 17, 55)]
    assert [t["auroc"] for t in told] == [0.5] * 3
    assert [t["n"] for t in told] == [60] * 3
    assert by_a_hospital(range(5, 40))["auroc"] not in (None, 0.5)  # of enough patients it is told


def test_of_a_sites_epochs_when_it_joins_two_are_told():
    """A server's weights and a rate can make each epoch of one answer a question of its own about few cases."""
    measured = [{"n": 60, "accuracy": 0.5 + 0.01 * epoch} for epoch in range(5)]
    metrics = {"validation": measured, "epoch": 3, "alone_validation": measured[:3], "alone_epoch": 0}
    told = coarsened(metrics, HOSPITAL.model_copy(update={"verdict": True}))
    assert [m and m["accuracy"] for m in told["validation"]] == [0.5, None, None, 0.53, None]
    assert [m and m["accuracy"] for m in told["alone_validation"]] == [0.5, None, None]
    assert coarsened(metrics, OPEN) == metrics


def test_measures_that_nobody_can_make_again_do_not_leave():
    plain = {"n": 400, "accuracy": 0.8}
    metrics = {"validation": plain, "test": {"selected": plain, "last": None}, "alone_validation": [plain], "epoch": 1}
    assert enough(metrics) == {
        "validation": None,
        "test": {"selected": None, "last": None},
        "alone_validation": [None],
        "epoch": 1,
    }
    verdict = {"alone": plain, "alone_round": 1, "used": {}, "gain": {"accuracy": None}}
    assert coarsened(enough({"verdict": verdict}), HOSPITAL.model_copy(update={"verdict": True})) == {}
    assert of_enough(metrics, OPEN, 60, trained=1, chooses=True, loss=True) == metrics


def test_what_few_patients_and_rare_labels_decide_is_not_told():
    metrics = {"selecting": {"cases": 30, "majority": 2}, "validation_loss": 1.1}
    assert enough(metrics) == metrics
    assert enough(metrics, judges=19) == {"selecting": None, "validation_loss": None}
    assert enough(metrics, loss=False) == {**metrics, "validation_loss": None}


def test_the_training_loss_of_few_patients_is_not_told():
    """Where no update leaves any number may train: of one it was the loss of that one's image."""
    metrics = {"train_loss": 1.1, "numbers": {"share": 0.5}}
    assert enough(metrics, trained=20) == metrics
    assert enough(metrics, trained=19) == {"train_loss": None, "numbers": None}
    few = HOSPITAL.model_copy(update={"least_patients": 14})  # it has 13
    for policy, leaves in [(few, False), (few.model_copy(update={"measures": "full"}), True)]:
        guarded = Guarded("local", policy=policy).hello()
        assert (guarded.train(1).metrics["train_loss"] is not None) == leaves


@pytest.mark.parametrize(("batch_size", "least", "leaves"), [(4, 5, False), (6, 5, True), (4, 4, True)])
def test_a_share_that_few_patients_decide_is_not_told(batch_size, least, leaves):
    """APFL learns it by the first batch alone: of batches of one, it told that patient's label."""
    policy, settings = HOSPITAL.model_copy(update={"least_patients": least}), {"batch_size": batch_size}
    guarded = Guarded("apfl", policy=policy, settings=settings).hello()
    assert (guarded.train(1).metrics["numbers"] is not None) == leaves
    full = Guarded("apfl", policy=policy.model_copy(update={"measures": "full"}), settings=settings).hello()
    assert full.train(1).metrics["numbers"] == {"alpha": 0.5}
    fixed = Guarded("apfl", policy=policy, settings=settings | {"adaptive": 0, "alpha": 0.25}).hello()
    assert fixed.train(1).metrics["numbers"] == {"alpha": 0.25}  # nobody decides it


def sizes(validation, test):
    return {"data_args": {"train": 60, "validation": validation, "test": test}}


@pytest.mark.parametrize("verdict", [False, True])
def test_a_whole_run_tells_what_rests_on_enough_patients(verdict):
    """Of three classes validation data have ten cases each, and test data thirty."""
    policy = HOSPITAL.model_copy(update={"verdict": verdict})
    federation = Federation.of(config("fedavg", rounds=2, alone="yes", select_by="accuracy", **sizes(30, 90)))
    sites = {name: federation.guarded(site, policy=policy) for name, site in sites_of(federation).items()}
    state = run_in_process(plan_of(federation), sites, federation.model, workers=1)
    assert not state.failures
    for name, found in state.final.items():
        validation, test = state.history[-1]["sites"][name]["validation"], found["test"]["selected"]
        assert validation["accuracy"] is not None
        assert (validation["auroc"], validation["auroc_classes"], validation["balanced_accuracy"]) == (None, 0, None)
        assert None not in (test["accuracy"], test["auroc"], test["balanced_accuracy"])
        assert ("verdict" in found) == verdict
        if verdict:
            assert found["verdict"]["alone"]["auroc"] is not None
            assert found["verdict"]["gain"]["auroc"] is not None


@pytest.mark.parametrize(
    ("use", "validation", "leaves"), [("best", 19, False), ("best", 20, True), ("received", 5, True)]
)
def test_what_few_validation_patients_have_chosen_is_not_told(use, validation, leaves):
    """The weight of a blend by one case tells that case's loss."""
    policy = HOSPITAL.model_copy(update={"verdict": True})
    asked = {"alone": "yes", "use": use, "select_by": "accuracy"}
    federation = Federation.of(config("fedavg", rounds=2, **asked, **sizes(validation, 90)))
    sites = {name: federation.guarded(site, policy=policy) for name, site in sites_of(federation).items()}
    state = run_in_process(plan_of(federation), sites, federation.model, workers=1)
    assert not state.failures
    assert {"verdict" in found for found in state.final.values()} == {leaves}


def test_a_part_of_few_patients_tells_nothing():
    federation = Federation.of(config("fedavg", rounds=2, alone="yes", select_by="accuracy", **sizes(19, 19)))
    party = sites_of(federation)
    policy = HOSPITAL.model_copy(update={"verdict": True})
    sites = {name: federation.guarded(site, policy=policy) for name, site in party.items()}
    state = run_in_process(plan_of(federation), sites, federation.model, workers=1)
    assert not state.failures
    assert {str(found["test"]) for found in state.final.values()} == {"{'selected': None, 'last': None}"}
    assert not any("verdict" in found for found in state.final.values())


def test_millimetres_leave_with_two_digits():
    measured = {"n": 40, "dice": 0.8123, "hd95": 34.5678, "volume_error": 0.001}
    found = coarsened({"validation": measured}, HOSPITAL)["validation"]
    assert found == {"n": 40, "dice": 0.81, "hd95": 35.0, "volume_error": 0.0}


def test_a_run_says_that_no_site_told_what_selects_the_round():
    federation = Federation.of(config("fedavg", rounds=2, select_by="auroc", **sizes(30, 90)))
    sites = {name: federation.guarded(site, policy=HOSPITAL) for name, site in sites_of(federation).items()}
    plan = plan_of(federation)
    state = run_in_process(plan, sites, federation.model, workers=1)
    assert state.best_round == 0
    assert _notes(plan.config, state, {}) == [
        "No site told its AUC on validation images, so the last round is reported; accuracy they told (--select-by)."
    ]


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1))
def test_what_has_left_a_site_passes_the_last_filter_as_it_is(least, n, accuracy):
    """A real site's answer goes through two gates: rounded to tens, enough cases were too few for the second."""
    policy = HOSPITAL.model_copy(update={"least_patients": least, "verdict": True})
    measured = {"n": n, "accuracy": accuracy}
    metrics = {"validation": measured, "selecting": {"cases": n, "majority": True}, "validation_loss": 0.52}
    metrics |= {"test": {"selected": measured, "last": None}, "samples": {"train": n, "validation": n}}
    once = coarsened(metrics, policy)
    assert coarsened(once, policy) == once
    assert (once["validation"] is not None) == (n >= least) == ("validation_loss" in once)
    assert (once["selecting"] is None) == (n < least)
    told = [once["validation"]["n"], once["selecting"]["cases"]] if n >= least else []
    assert all(least <= number and (number < 20) == (n < 20) for number in told if n >= 10)


@pytest.mark.parametrize(
    ("least", "n", "told"), [(20, 29, 20), (10, 19, 10), (15, 19, 15), (25, 34, 30), (25, 27, 25), (0, 3, 10)]
)
def test_numbers_of_cases_are_rounded_down(least, n, told):
    """Reports warn of fewer than 20, or 100: what is rounded up would be none of them."""
    policy = HOSPITAL.model_copy(update={"least_patients": least})
    found = coarsened({"validation": {"n": n}, "selecting": {"cases": n, "majority": None}}, policy)
    assert (found["validation"]["n"], found["selecting"]["cases"]) == (told, told)


@given(st.floats(-2, 2) | st.floats(-2000, 2000), st.floats(0, 3) | st.floats(0, 2000), st.floats(0, 1))
def test_a_rounded_number_stays_within_its_range(least, wide, share):
    most = least + wide
    value = min(least + share * wide, most)
    gate = Gate({}, numbers={"share": (least, most)}, policy=HOSPITAL)
    update = Update("site-1", 1, {}, {"train_loss": 1.0, "validation": None, "numbers": {"share": value}})
    once = gate.passed("train", update)
    assert least <= once.metrics["numbers"]["share"] <= most
    assert gate.passed("train", once) == once


@pytest.mark.parametrize(("policy", "number", "seconds"), [(OPEN, 812.34, 93.128), (HOSPITAL, 810.0, 93.0)])
def test_what_a_method_says_of_a_site_and_how_long_it_took_leave_with_two_digits(policy, number, seconds):
    """A count or a mean in HU would be exact by its digits before the point."""
    gate = Gate({}, numbers={"mean": (0.0, 1e3)}, policy=policy)
    metrics = {"train_loss": 1.0, "validation": None, "numbers": {"mean": 812.34}}
    left = gate.passed("train", Update("site-1", 1, {}, metrics, 93.1279))
    assert (left.metrics["numbers"], left.seconds) == ({"mean": number}, seconds)


@pytest.mark.parametrize(("weight", "told"), [(0.004, 0.01), (0.996, 0.99), (0.0, 0.0), (1.0, 1.0), (0.625, 0.62)])
def test_a_little_of_a_model_is_told_as_a_little(weight, told):
    """As none it would say of a site with a gain or a loss that it uses its own model alone."""
    policy = HOSPITAL.model_copy(update={"verdict": True})
    used = {"selected": {"candidate": "as published", "weight": weight}}
    verdict = {"alone": {"n": 100, "accuracy": 0.88}, "gain": None, "used": used}
    left = coarsened({"verdict": verdict, "weight": weight}, policy)
    assert left["verdict"]["used"]["selected"]["weight"] == left["weight"] == told


def test_what_a_site_uses_is_not_validated_elsewhere_without_a_verdict():
    """Beside the received model's measures of the same cases it would say which of the two that is."""
    measured = {"n": 100, "accuracy": 0.88}
    answer = {"test": {"selected": measured, "last": None}, "validation": measured}
    for measures in ("coarse", "full"):
        policy = HOSPITAL.model_copy(update={"measures": measures})
        assert "validation" not in coarsened(answer, policy)
        assert coarsened(answer, policy.model_copy(update={"verdict": True}))["validation"]["accuracy"] == 0.88
        assert coarsened({"validation": measured}, policy)["validation"]["accuracy"] == 0.88  # of a round


def test_what_further_measures_gain_stays_as_they_do():
    policy = HOSPITAL.model_copy(update={"verdict": True})
    gain = {"accuracy": {"difference": 0.1234, "low": 0.0, "high": 0.25}, "brier": None, "sensitivity": None}
    verdict = {"alone": {"n": 100, "accuracy": 0.88, "brier": 0.1}, "alone_round": 1, "used": {}, "gain": gain}
    left = coarsened({"verdict": verdict}, policy)["verdict"]
    assert left["gain"] == {"accuracy": {"difference": 0.12, "low": 0.0, "high": 0.25}}
    assert left["alone"] == {"n": 100, "accuracy": 0.88}


def test_a_loss_beyond_ten_is_told_as_ten():
    """Logits as large as a server likes would make the share of a class in it exact."""
    metrics = {"train_loss": 5731.2, "validation_loss": 812.34, "validation": {"n": 100, "accuracy": 0.5}}
    left = coarsened(metrics, HOSPITAL)
    assert (left["train_loss"], left["validation_loss"]) == (10.0, 10.0)
    assert coarsened(metrics | {"train_loss": 1.234, "validation_loss": 1.234}, HOSPITAL)["train_loss"] == 1.0


def test_an_update_leaves_as_a_whole_or_not_at_all():
    gate = Gate({name: ((2,), torch.float32) for name in "ab"})
    metrics = {"train_loss": 1.0, "validation": None}
    whole = Update("site-1", 1, {name: torch.zeros(2) for name in "ab"}, metrics)
    assert set(gate.passed("train", whole).tensors) == {"a", "b"}
    with pytest.raises(StateError, match="'b'"):
        gate.passed("train", Update("site-1", 1, {"a": torch.zeros(2)}, metrics))


@pytest.mark.parametrize(("policy", "digits"), [(OPEN, torch.float64), (HOSPITAL, torch.float32)])
def test_the_last_digits_of_statistics_in_float64_stay(policy, digits):
    """They have room for something else."""
    entries = {"mean": Entry((2,), (torch.float64,))}
    gate = Gate({}, (Channel("statistics", True, entries, ("train",), "means"),), policy=policy)
    sent = torch.tensor([1 / 3, 0.1], dtype=torch.float64)
    update = Update("site-1", 1, {"statistics/mean": sent}, {"train_loss": 1.0, "validation": None})
    left = gate.passed("train", update).tensors["statistics/mean"]
    assert left.dtype == torch.float64 and torch.equal(left, sent.to(digits).double())
