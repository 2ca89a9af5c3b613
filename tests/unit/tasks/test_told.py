"""What may be told of measures: no single patient moves it far, whatever a server has made of the model."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from medpfl.core.answers import answers
from medpfl.core.site_data import ImageTensors
from medpfl.tasks import TASKS
from medpfl.tasks.evaluation import Cases, cases
from medpfl.tasks.segmentation.judging import Judged
from medpfl.tasks.told import Enough

LEAST = 20


def classes_of(rng, n):
    labels = np.r_[np.repeat([0, 1, 2], n // 3), np.zeros(n % 3, int)]
    labels[:n] = np.where(rng.random(n) < 0.6, 0, labels)
    return labels


def probabilities(rng, n, classes):
    found = rng.random((n, classes)) ** 4
    return found / found.sum(1, keepdims=True)


def predicted(task, rng, n):
    """Cases with common and rare classes, labels or structures, and what some model makes of them."""
    if task == "multi-label":
        shares = rng.choice([0.02, 0.1, 0.5], 3)
        labels = (rng.random((n, 3)) < shares).astype(int)
        return rng.random((n, 3)), np.where(rng.random((n, 3)) < 0.1, -1, labels)
    if task == "segmentation":
        true = 100 * (rng.random((n, 2)) < rng.choice([0.03, 0.3, 1.0], 2))
        volume, hit = 200 * rng.random((n, 2)), rng.random((n, 2))
        surface = np.where(true > 0, 30 * rng.random((n, 2)), np.nan)
        return Judged(hit * true, volume, true, hit * np.minimum(true, volume), volume, surface)
    return probabilities(rng, n, 3), classes_of(rng, n)


def changed(task, predictions, case, rng):
    """The same with another prediction for one case."""
    other = predicted(task, rng, n=len(predictions.true if task == "segmentation" else predictions[1]))
    if task == "segmentation":
        one = {"hit": 0.0, "predicted": 1e6} if rng.random() < 0.5 else {"hit": 100.0, "predicted": 100.0}
        columns = {name: getattr(predictions, name).copy() for name in ("hit", "predicted")}
        for name, value in one.items():
            columns[name][case] = value
        return Judged(**{**vars(predictions), **columns})
    scores = predictions[0].copy()
    scores[case] = other[0][case]
    return scores, predictions[1]


@settings(max_examples=80)
@given(st.sampled_from(sorted(TASKS)), st.integers(2, 9), st.integers(0, 10**6), st.sampled_from((1, 4)))
@example("segmentation", 2, 3, 1)  # Student's interval of two cases goes beyond any Dice
def test_what_a_few_cases_gain_is_an_answer_that_may_leave(task, n, seed, few):
    rng, learned = np.random.default_rng(seed), TASKS[task]
    one = predicted(task, rng, n)
    two = one
    for case in range(0, n, few):
        two = changed(task, two, case, rng)
    gained = learned.compared(two, one)
    schema = answers(learned.schema, learned.spans)["test"].model_fields["verdict"].annotation
    verdict = next(kind for kind in get_args(schema) if kind is not type(None))
    use = {"candidate": "as published", "round": 1, "weight": 1.0}
    said = {"alone": None, "alone_round": 1, "used": {"selected": use, "last": use}, "gain": dict(gained)}
    found = verdict.model_validate(said).gain.model_dump()
    assert found == {name: gained.get(name) for name in found}
    for name, gain in gained.items():
        assert gain is None or gain["low"] <= gain["difference"] <= gain["high"], name


@settings(max_examples=60)
@given(st.sampled_from(sorted(TASKS)), st.integers(1, 9), st.integers(0, 10**6))
def test_what_a_few_cases_measure_is_an_answer_that_may_leave(task, n, seed):
    learned, found = TASKS[task], predicted(task, np.random.default_rng(seed), n)
    more = learned.further(found, found, None)
    measured = dict(learned.measured(found)) | (more.numbers() if more else {})
    kept = learned.schema.model_validate(measured).model_dump()
    assert {name: kept[name] for name in measured if name != "intervals"} == {
        name: value for name, value in measured.items() if name != "intervals"
    }


@settings(max_examples=40)
@given(st.sampled_from(sorted(TASKS)), st.integers(20, 90), st.integers(0, 10**6))
@example("multi-label", 20, 190)  # three known labels of one patient, 53 of all
def test_no_patient_moves_what_is_told_by_more_than_one_of_enough(task, n, seed):
    rng = np.random.default_rng(seed)
    one = predicted(task, rng, n)
    two = changed(task, one, int(rng.integers(n)), rng)
    first, second = (TASKS[task].measured(found).told(LEAST) for found in (one, two))
    for name in ("accuracy", "balanced_accuracy", "auroc", "dice", "volume_error"):
        if first.get(name) is None:
            assert second.get(name) is None, "which measures are told must not depend on the model"
        else:
            assert abs(first[name] - second[name]) <= 1 / LEAST + 1e-9, name


def test_every_measure_is_told_where_all_have_enough():
    rng = np.random.default_rng(0)
    for name, task in TASKS.items():
        if name == "segmentation":
            found = Judged(*(np.full((50, 2), 30.0) for _ in range(6)))
        elif name == "multi-label":
            found = rng.random((50, 2)), np.stack([np.arange(50) % 2] * 2, 1)
        else:
            found = probabilities(rng, 63, 3), np.arange(63) % 3
        measured, gain = task.measured(found), task.compared(found, found)
        assert measured.told(LEAST) == measured
        assert gain.told(LEAST) == gain


@pytest.mark.parametrize("name", ["classification", "ordinal", "multi-label", "segmentation"])
def test_what_is_told_is_of_patients_where_several_cases_are_one_patients(name):
    rng, of = np.random.default_rng(0), Cases("patient", np.repeat(np.arange(63), 2))
    if name == "segmentation":
        first, second = (Judged(*(30 * rng.random((126, 1)) for _ in range(6))) for _ in range(2))
    elif name == "multi-label":
        first, second = ((rng.random((126, 1)), np.arange(126)[:, None] // 2 % 2) for _ in range(2))
    else:
        first, second = ((probabilities(rng, 126, 3), np.arange(126) // 2 % 3) for _ in range(2))
    for found in (TASKS[name].measured(first, of), TASKS[name].compared(first, second, of)):
        assert found.told(LEAST) == found


def test_distances_of_which_one_is_known_are_not_told():
    values, surface = np.full((30, 1), 30.0), np.full((30, 1), np.nan)
    surface[4] = 12.0
    found = TASKS["segmentation"].measured(Judged(values, values, values, values, values, surface))
    assert found["hd95"] == 12 and found.told(LEAST)["hd95"] is None and found.told(LEAST)["dice"] == 1


def test_a_structure_of_one_case_is_left_out_of_the_mean():
    true = np.stack([np.full(30, 100.0), np.zeros(30)], 1)
    true[7, 1] = 100.0
    values = np.full((30, 2), 50.0)
    for hit in (0.0, 100.0):
        found = Judged(values, values, true, np.where([0, 1], hit, values), values + 50.0, values)
        told = TASKS["segmentation"].measured(found).told(LEAST)
        assert told["dice"] == pytest.approx(0.5)
        assert told["hd95"] == pytest.approx(50.0)
        assert told["dice_by_class"][1] is None


def test_a_rare_class_ends_the_balanced_accuracy_and_leaves_the_mean_auc():
    labels = np.r_[np.zeros(30, int), np.ones(30, int), 2]
    rng = np.random.default_rng(0)
    scores = probabilities(rng, 61, 3)
    found = TASKS["classification"].measured((scores, labels))
    told = found.told(LEAST)
    assert found["auroc_classes"] == 3
    assert told["auroc_classes"] == 2
    assert told["balanced_accuracy"] is None
    assert told["accuracy"] == found["accuracy"]
    other = TASKS["classification"].compared((scores, labels), (scores[:, ::-1], labels)).told(LEAST)
    assert other["balanced_accuracy"] is None
    assert other["auroc"] is not None


def test_of_two_classes_the_rank_of_the_one_patient_of_the_rare_one_is_not_told_by_the_others_auc():
    """Both have the same AUC: whoever has not the common class has the rare one."""
    rng, labels, task = np.random.default_rng(0), np.r_[np.zeros(40, int), 1], TASKS["classification"]
    scores, others = (probabilities(rng, 41, 2) for _ in range(2))
    found, gained = task.measured((scores, labels)), task.compared((scores, labels), (others, labels))
    assert found["auroc_classes"] == 2 and gained["auroc"] is not None
    assert (found.told(LEAST)["auroc"], found.told(LEAST)["auroc_classes"]) == (None, 0)
    assert gained.told(LEAST)["auroc"] is None


def test_a_class_that_nobody_has_reads_as_one_that_one_patient_has():
    """Else whether the balanced accuracy is told would say that there is one."""
    rng = np.random.default_rng(0)
    for rare in (0, 2):
        labels = np.r_[np.zeros(30, int), np.ones(30, int), rare]
        assert (
            TASKS["classification"].measured((probabilities(rng, 61, 3), labels)).told(LEAST)["balanced_accuracy"]
            is None
        )


def test_kappa_is_not_told_where_one_far_grade_decides_it():
    rng = np.random.default_rng(0)
    near, far = (np.r_[np.zeros(30, int), np.ones(25, int), grade] for grade in (1, 4))
    few = np.r_[np.repeat(np.arange(5), 40)]
    told = [
        TASKS["ordinal"].measured((probabilities(rng, len(g), 5), g)).told(LEAST)["kappa"] for g in (near, far, few)
    ]
    assert told[1] is None
    assert told[0] is not None
    assert told[2] is not None


def test_an_error_may_leave_where_its_square_may_not():
    """One case is two grades beyond sixty others: of the errors from 0 it has 3 of 63, of their squares 9 of 69."""
    grades = np.r_[np.zeros(60, int), np.ones(60, int), 3]
    told = TASKS["ordinal"].measured((probabilities(np.random.default_rng(0), 121, 4), grades)).told(LEAST)
    assert told["mae"] is not None and told["kappa"] is None


@pytest.mark.parametrize("task", sorted(TASKS))
def test_patients_count_and_not_their_pictures(task):
    rng = np.random.default_rng(0)
    found = predicted(task, rng, 60)
    assert TASKS[task].measured(found, Cases("patient", np.arange(60))).told(LEAST) is not None
    assert TASKS[task].measured(found, Cases("patient", np.arange(60) // 4)).told(LEAST) is None
    assert TASKS[task].compared(found, found, Cases("patient", np.arange(60) // 4)).told(LEAST) is None


def test_the_positives_of_one_patient_are_one():
    labels = np.zeros((60, 2), int)
    labels[:30, 0] = labels[:25, 1] = 1
    owners = np.r_[np.zeros(25, int), np.arange(1, 36)]
    scores = np.random.default_rng(0).random((60, 2))
    assert TASKS["multi-label"].measured((scores, labels)).told(LEAST)["auroc_by_label"][1] is not None
    assert TASKS["multi-label"].measured((scores, labels), Cases("patient", owners)).told(LEAST)["auroc_by_label"] == [
        None,
        None,
    ]


def test_a_patient_of_whom_a_label_is_not_known_is_none_without_it():
    """Of the first label one is known not to have it: the AUC would be that one's rank."""
    labels = np.full((80, 2), -1)
    labels[:25, 0], labels[25, 0], labels[:60, 1] = 1, 0, np.arange(60) % 2
    scores = np.random.default_rng(0).random((80, 2))
    task = TASKS["multi-label"]
    found, gained = task.measured((scores, labels)), task.compared((scores, labels), (scores[::-1], labels))
    assert None not in found["auroc_by_label"]
    told = found.told(LEAST)
    assert told["auroc_by_label"] == [None, pytest.approx(found["auroc_by_label"][1])]
    assert gained.told(LEAST)["auroc"]["difference"] != pytest.approx(gained["auroc"]["difference"])


def test_the_patient_of_a_case_is_that_of_its_samples():
    """Of bags the first sample's: a patient with two labels is two bags and one patient."""
    images = {"test": torch.zeros(5, 1, 2, 2)}
    labels = {"test": torch.tensor([0, 0, 1, 0, 1])}
    plain = ImageTensors(images, labels)
    assert cases(plain, "test").whose is None
    persons = {"test": torch.tensor([4, 4, 4, 2, 9])}
    assert cases(ImageTensors(images, labels, persons=persons), "test").whose.tolist() == [4, 4, 4, 2, 9]
    bags = {"test": torch.tensor([0, 0, 1, 2, 3])}
    assert cases(ImageTensors(images, labels, bags, persons), "test").whose.tolist() == [4, 4, 2, 9]


def test_enough_counts_by_hand():
    enough = Enough(2, Cases("patient", np.array([0, 0, 1, 2])))
    there = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)
    assert enough(there).tolist() == [False, True, False]
    assert enough.patients(4)
    assert not Enough(4, enough.of).patients(4)
    assert enough.share(np.array([1.0, 0.0, 1.0, 0.0]))
    assert not enough.share(np.array([1.0, 1.0, 1.0, 0.0]))
    assert not enough.share(np.zeros(4))


@pytest.mark.parametrize("task", ["classification", "multi-label", "ordinal"])
@pytest.mark.parametrize("broken", [0, 1, 7])
def test_whether_a_model_breaks_on_a_case_is_not_told(task, broken):
    """A model of the server's choice gives nothing finite for one picture alone; else that would say it is there."""
    rng = np.random.default_rng(0)
    labels = np.stack([np.arange(60) % 2] * 2, 1) if task == "multi-label" else np.arange(60) % 2
    scores = rng.random((60, 2)) if task == "multi-label" else probabilities(rng, 60, 2)
    odd = scores.copy()
    odd[broken] = np.nan
    whole, told = (TASKS[task].measured((p, labels)).told(LEAST) for p in (scores, odd))
    gains = [TASKS[task].compared((p, labels), (scores, labels)).told(LEAST) for p in (scores, odd)]
    for one, two in ((whole, told), gains):
        assert {name for name, value in one.items() if value is None} == {k for k, v in two.items() if v is None}
    assert abs(whole["accuracy"] - told["accuracy"]) <= 1 / LEAST


def test_grades_between_that_nobody_has_do_not_amplify_a_rare_one():
    labels = np.zeros(400, dtype=int)
    labels[0] = 999
    always = np.zeros((400, 1000))
    always[:, 0] = 1
    assert TASKS["ordinal"].measured((always, labels)).told(LEAST)["mae"] is None
    near = np.arange(400) % 5
    assert TASKS["ordinal"].measured((probabilities(np.random.default_rng(0), 400, 5), near)).told(LEAST)["mae"]


def test_accuracy_of_labels_and_what_it_gains_leave_by_one_rule():
    """One patient has six of 105 pictures, and so over a twentieth of the known labels."""
    rng = np.random.default_rng(0)
    labels, scores, others = (rng.random((105, 3)) > 0.5).astype(int), rng.random((105, 3)), rng.random((105, 3))
    for whose, leaves in ((np.r_[np.zeros(6, int), np.arange(1, 100)], False), (np.arange(105), True)):
        of = Cases("patient", whose)
        accuracy = TASKS["multi-label"].measured((scores, labels), of).told(LEAST)["accuracy"]
        gain = TASKS["multi-label"].compared((scores, labels), (others, labels), of).told(LEAST)["accuracy"]
        assert (accuracy is not None, gain is not None) == (leaves, leaves)
