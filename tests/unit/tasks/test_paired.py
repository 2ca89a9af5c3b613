"""Paired differences: by hand, against the plain measures, and how often their intervals hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import t

from medpfl.tasks.auc import hanley_mcneil
from medpfl.tasks.measures import measures
from medpfl.tasks.paired import auroc_gain, counted, differences, verdict

MEASURES = ("accuracy", "balanced_accuracy", "auroc")
SLOW = {"marks": pytest.mark.slow}
"""Of simulations that say little more than the quick one beside them."""


def one_hot(classes: np.ndarray, of: int = 3) -> np.ndarray:
    return np.eye(of)[classes]


def test_accuracy_by_hand():
    """Of 8 cases the new model is right on 4 more: p12 = 5/10, p21 = 1/10, 0.4 -+ 1.96 sqrt(0.44 / 10)."""
    labels = np.zeros(8, dtype=int)
    old, new = one_hot(np.array([0, 0, 0, 0, 1, 1, 1, 1])), one_hot(np.zeros(8, dtype=int))
    found = differences(new, old, labels)["accuracy"]
    assert found["difference"] == 0.5
    assert found["low"] == pytest.approx(0.4 - 1.959964 * np.sqrt(0.044))
    assert found["high"] == pytest.approx(0.4 + 1.959964 * np.sqrt(0.044))
    assert verdict(found) == "no difference found"


def test_what_it_is_called():
    assert verdict({"difference": 0.2, "low": 0.1, "high": 0.3}) == "gains"
    assert verdict({"difference": -0.2, "low": -0.3, "high": -0.1}) == "loses"
    assert verdict({"difference": 0.0, "low": 0.0, "high": 0.0}) == "no difference found"
    assert verdict({"difference": -0.00001, "low": -0.00002, "high": -0.000005}) == "no difference found"
    assert verdict({"difference": 0.0006, "low": 0.0005, "high": 0.0007}) == "gains"
    assert verdict(None) is None


@settings(max_examples=60)
@given(st.integers(2, 40), st.integers(2, 5), st.integers(0, 10**6))
def test_they_are_differences_of_the_measures_and_lie_in_their_intervals(n, classes, seed):
    rng = np.random.default_rng(seed)
    new, old = rng.dirichlet(np.ones(classes), (2, n))
    labels = rng.integers(0, classes, n)
    found, back = differences(new, old, labels), differences(old, new, labels)
    a, b = measures(new, labels), measures(old, labels)
    for name in MEASURES:
        if a[name] is None:
            assert found[name] is None
        if found[name] is None:
            assert a[name] is None or name == "auroc"  # where no case's place differs otherwise than all others'
            continue
        assert found[name]["difference"] == pytest.approx(a[name] - b[name], abs=1e-12)
        assert -1 <= found[name]["low"] <= found[name]["difference"] <= found[name]["high"] <= 1
        assert back[name]["low"] == pytest.approx(-found[name]["high"], abs=1e-12)


@pytest.mark.parametrize("n", [15, *(pytest.param(n, **SLOW) for n in (60, 300))])
def test_intervals_hold_the_truth_as_often_as_they_say(n):
    """Two models of known quality on three classes: scores are normal, shifted by 1.2 and 0.9 at the right class."""
    rng = np.random.default_rng(n)

    def drawn(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        labels = rng.integers(0, 3, size)
        common = 0.7 * rng.normal(size=(size, 3))
        new, old = (common + 0.7 * rng.normal(size=(size, 3)) + shift * one_hot(labels) for shift in (1.2, 0.9))
        return new, old, labels

    truth = {k: v["difference"] for k, v in differences(*drawn(200_000)).items()}
    trials = 400
    held = dict.fromkeys(MEASURES, 0)
    for _ in range(trials):
        found = differences(*drawn(n))
        for name in MEASURES:
            held[name] += found[name]["low"] <= truth[name] <= found[name]["high"]
    assert all(count / trials >= 0.92 for count in held.values()), held


def test_between_patients_deviations_are_as_wide_as_students_t_says():
    """Ten patients of four cases, three of them +1: 0.07 three times and seven times -0.03, squared, times 10 / 9."""
    labels, whose = np.zeros(40, dtype=int), np.repeat(np.arange(10)[::-1], 4)
    old = one_hot(np.repeat(3 * [1] + 7 * [0], 4))
    found = differences(one_hot(labels), old, labels, whose)
    deviation, middle = np.sqrt((3 * 0.07**2 + 7 * 0.03**2) * 10 / 9), 13 / 42 - 1 / 42
    assert found["accuracy"]["difference"] == pytest.approx(0.3)
    assert found["accuracy"]["high"] == pytest.approx(middle + 2.262157 * deviation)
    assert found["accuracy"]["low"] == pytest.approx(middle - 2.262157 * deviation)
    assert found["balanced_accuracy"]["high"] == pytest.approx(middle + 2.262157 * deviation)  # of one class


@pytest.mark.parametrize("n", [2, 5, 30])
def test_of_one_class_balanced_accuracy_is_accuracy_with_its_interval(n):
    right, old = one_hot(np.zeros(n, dtype=int)), one_hot(np.arange(n) % 3)
    found = differences(right, old, np.zeros(n, dtype=int))
    assert found["balanced_accuracy"] == pytest.approx(found["accuracy"])


@pytest.mark.parametrize("sizes", [(9, 1), *(pytest.param(s, **SLOW) for s in ((4, 3, 2, 1), (8, 6, 4, 2)))])
def test_rare_classes_show_a_difference_of_equal_models_in_no_more_than_one_of_twenty_sites(sizes):
    """Half of the cases differ, either way; without what is added to the centre 8 to 12 in a hundred show one."""
    rng, labels, trials = np.random.default_rng(1), np.repeat(np.arange(len(sizes)), sizes), 500
    shown = 0
    for _ in range(trials):
        better = rng.choice([0, 1, 2], size=len(labels), p=[0.5, 0.25, 0.25])
        new, old = (one_hot((labels + (better == wrong)) % 4, 4) for wrong in (2, 1))
        shown += verdict(differences(new, old, labels)["balanced_accuracy"]) != "no difference found"
    assert shown / trials <= 0.06


def structural(scores, positive):
    """DeLong's components of positives and of negatives, pair by pair."""
    pairs = scores[positive][:, None] - scores[~positive]
    found = (pairs > 0) + 0.5 * (pairs == 0)
    return found.mean(1), found.mean(0)


def test_what_an_auc_gains_has_delongs_interval_of_two_correlated_curves():
    """Two classes that mirror each other are one curve: their mean has its error, and not twice that."""
    rng, positive = np.random.default_rng(3), np.arange(16) < 7
    new, old = (rng.normal(size=16) + shift * positive for shift in (1.5, 0.5))
    of_positives, of_negatives = map(np.subtract, structural(new, positive), structural(old, positive))
    error = np.sqrt(of_positives.var(ddof=1) / 7 + of_negatives.var(ddof=1) / 9)
    reach = error * t.ppf(0.975, (1 / 7 + 1 / 9) ** 2 / (1 / 7**2 / 6 + 1 / 9**2 / 8))
    for scores in (new[:, None], old[:, None]), (np.stack([-new, new], 1), np.stack([-old, old], 1)):
        both = np.stack([~positive, positive])[-scores[0].shape[1] :]
        found = auroc_gain(*scores, both)
        assert found["difference"] == pytest.approx(of_positives.mean())
        assert found["high"] - found["difference"] == pytest.approx(reach, rel=1e-6)


def test_the_positives_of_one_patient_tell_of_the_aucs_spread_as_one_would():
    """As if both models were independent, by Hanley and McNeil, of one positive beside nine negatives."""
    positive, whose = np.arange(12)[None] < 3, np.r_[0, 0, 0, 1:10]
    new, old = np.arange(12.0)[::-1, None], np.r_[5.5, 9, 8, 0:9][:, None]
    found = auroc_gain(new, old, positive, whose=whose)
    old_area = np.mean([6, 9, 8.5]) / 9
    assert found["difference"] == pytest.approx(1 - old_area)
    apart = 1 / (2 * np.sqrt(9))
    variance = sum(hanley_mcneil(np.clip(area, apart, 1 - apart), 1, 9) for area in (1, old_area))
    assert found["low"] == pytest.approx(1 - old_area - 1.959964 * np.sqrt(variance))


def test_a_class_of_one_case_that_is_there_twice_is_known_no_better():
    positive, new, old = np.arange(12)[None] < 1, np.arange(12.0)[::-1, None], np.r_[5.5, 0:11][:, None]
    one = auroc_gain(new, old, positive)
    twice = auroc_gain(np.hstack([new, new]), np.hstack([old, old]), np.vstack([positive, positive]))
    assert twice == pytest.approx(one)


def test_cases_of_which_a_label_is_not_known_add_nothing_to_what_an_auc_gains():
    rng, positive = np.random.default_rng(4), np.arange(14)[None] < 6
    new, old = (rng.normal(size=(14, 1)) + shift * positive.T for shift in (1.5, 0.5))
    some, more = rng.normal(size=(9, 1)), [(0, 0), (0, 9)]
    known = np.pad(np.ones((1, 14), dtype=bool), more)
    found = auroc_gain(np.vstack([new, some]), np.vstack([old, -some]), np.pad(positive, more), known)
    assert found == pytest.approx(auroc_gain(new, old, positive))


def test_cases_of_few_patients_show_no_difference_in_their_auc():
    rng, labels = np.random.default_rng(0), np.tile([0, 1], 20)
    new, old = (sign * labels[:, None] + 0.4 * rng.normal(size=(40, 1)) for sign in (1, -1))
    for patients in (5, 6):
        found = auroc_gain(new, old, labels[None] == 1, whose=np.arange(40) * patients // 40)
        assert found["difference"] > 0.8 and verdict(found) == ("gains" if patients == 6 else "no difference found")


@pytest.mark.parametrize("positives", [2, *(pytest.param(n, **SLOW) for n in (3, 5))])
def test_few_positives_seldom_tell_equal_models_apart_by_their_auc(positives):
    """By 1.96 deviations 24, 16 and 10 in a hundred would be told apart."""
    rng, shown, trials = np.random.default_rng(positives), 0, 600
    positive = np.arange(positives + 200)[None] < positives
    for _ in range(trials):
        shared = rng.normal(size=(positives + 200, 1))
        new, old = (shared + rng.normal(size=shared.shape) + 0.4 * positive.T for _ in range(2))
        shown += verdict(auroc_gain(new, old, positive)) != "no difference found"
    assert shown / trials <= 0.06


@pytest.mark.parametrize("one_class_each", [pytest.param(False, **SLOW), True])
@pytest.mark.parametrize("patients", [pytest.param(2, **SLOW), 3, pytest.param(6, **SLOW)])
def test_intervals_hold_where_many_cases_are_few_patients(patients, one_class_each):
    """Two models that are equally good, each better at patients of its own; of 200 intervals 89 % or more hold."""
    rng, cases = np.random.default_rng(patients), 30
    whose, trials = np.repeat(np.arange(patients), cases), 200
    held = dict.fromkeys(MEASURES, 0)
    for _ in range(trials):
        labels = whose % 2 if one_class_each else rng.integers(0, 2, len(whose))
        common = rng.normal(size=(len(whose), 2)) + one_hot(labels, 2)
        own = np.repeat(rng.normal(size=(2, patients, 2)), cases, axis=1)
        new, old = (common + of + 0.7 * rng.normal(size=common.shape) for of in own)
        found = differences(new, old, labels, whose)
        for name in MEASURES:
            held[name] += found[name]["low"] <= 0 <= found[name]["high"]
    assert all(count / trials >= 0.89 for count in held.values()), held


def test_patients_of_whom_none_differs_tell_as_much_as_patients_and_not_as_their_cases():
    """As if one more of each sign differed in all of its cases: twice 1 / 26 squared, of 24 patients with 6 each."""
    labels, whose = np.arange(144) % 2, np.repeat(np.arange(24), 6)
    same = differences(one_hot(labels, 2), one_hot(labels, 2), labels, whose)["accuracy"]
    assert same["high"] == -same["low"] == pytest.approx(1.959964 * np.sqrt(2) / 26)
    by_class = differences(one_hot(labels, 2), one_hot(labels, 2), labels, whose)["balanced_accuracy"]
    assert by_class["high"] == -by_class["low"] == pytest.approx(1.959964 * np.sqrt(2 * 2) / 26 / 2)  # of two classes
    few = one_hot(labels, 2)
    few[0] = few[0, ::-1]  # now one differs in a sixth of its cases
    slight = differences(few, one_hot(labels, 2), labels, whose)["accuracy"]
    assert slight["high"] - slight["low"] < (same["high"] - same["low"]) / 2


UNEVEN = {
    "one has twenty": [20] + 7 * [1],
    "two of ten have twenty": 2 * [20] + 8 * [1],
    "two have forty": 2 * [40] + 13 * [2],
}


@pytest.mark.parametrize("alike", [pytest.param(0.5, **SLOW), 0.9])
@pytest.mark.parametrize(
    "uneven", ["one has twenty", *(pytest.param(of, **SLOW) for of in ("two of ten have twenty", "two have forty"))]
)
def test_equal_models_seldom_differ_however_unequal_a_sites_patients(uneven, alike):
    """With K - 1 degrees of freedom and plain residuals they would at 15 to 33 of 100 sites in one of the measures."""
    sizes = UNEVEN[uneven]
    rng, trials = np.random.default_rng(0), 250
    whose, shown = np.repeat(np.arange(len(sizes)), sizes), dict.fromkeys(MEASURES, 0)

    def drawn():
        own, each = rng.normal(size=(len(sizes), 2))[whose], rng.normal(size=(len(whose), 2))
        return np.sqrt(alike) * own + np.sqrt(1 - alike) * each

    for _ in range(trials):
        labels = rng.integers(0, 2, len(sizes))[whose]
        common = one_hot(labels, 2) + np.sqrt(0.5) * drawn()
        new, old = (softmax(2 * (common + np.sqrt(0.5) * drawn()), axis=1) for _ in range(2))
        found = differences(new, old, labels, whose)
        for name in MEASURES:
            shown[name] += found[name] is not None and verdict(found[name]) != "no difference found"
    assert all(count / trials <= 0.11 for count in shown.values()), shown


@pytest.mark.parametrize("patients", [2, 3, 4, 5, 6])
def test_few_patients_whose_cases_all_agree_show_nothing(patients):
    """Equally good models agree so by chance in 1 of 2, 4, 8, 16 and 32 times; six are the first of whom it is rare."""
    labels, whose = np.arange(patients * 8) % 2, np.repeat(np.arange(patients), 8)
    found = differences(one_hot(labels, 2), one_hot(1 - labels, 2), labels, whose)
    words = {verdict(found[name]) for name in ("accuracy", "balanced_accuracy")}
    assert words == ({"gains"} if patients == 6 else {"no difference found"})
    assert found["accuracy"]["difference"] == 1
    single = np.arange(patients) % 2  # and as few cases of patients nobody knows
    found = differences(one_hot(single, 2), one_hot(1 - single, 2), single)["accuracy"]
    assert verdict(found) == ("gains" if patients == 6 else "no difference found")


def test_of_a_class_that_one_patient_has_alone_balanced_accuracy_rests_on_one_case():
    """Of eight others nobody differs, 0.02; his five cases are better: p12 = 2/3, p21 = 1/3 of one case and two."""
    labels, whose = np.repeat([0, 1], [8, 5]), np.r_[np.arange(8), np.full(5, 8)]
    old = one_hot(np.zeros(13, dtype=int), 2)
    found = differences(one_hot(labels, 2), old, labels, whose)["balanced_accuracy"]
    deviation = np.sqrt(2 / 10**2 + (1 - 1 / 9) / 3) / 2
    assert found["difference"] == 0.5
    assert found["low"] == pytest.approx(0.5 / 2 - 1.959964 * deviation)
    assert found["high"] == pytest.approx(0.5 / 2 + 1.959964 * deviation)


def test_cases_of_one_patient_do_not_say_how_another_differs():
    labels, right = np.arange(30) % 2, np.arange(30) < 24
    new, old = one_hot(labels, 2), one_hot(np.where(right, labels, 1 - labels), 2)
    assert verdict(differences(new, old, labels)["accuracy"]) == "gains"
    assert differences(new, old, labels, np.full(30, 7)) == dict.fromkeys(MEASURES)


def test_nothing_is_said_without_cases():
    nothing = dict.fromkeys(MEASURES)
    assert differences(np.empty((0, 3)), np.empty((0, 3)), np.empty(0, dtype=int)) == nothing


def test_a_case_that_is_not_finite_is_wrong_and_its_site_still_judged():
    labels = np.arange(40) % 2
    old, right = one_hot(labels, 2), one_hot(labels, 2)
    old[3] = np.nan  # argmax takes a NaN for the highest
    assert old[3].argmax() == 0 and labels[3] == 1 and labels[4] == 0
    old[4] = np.nan
    found = differences(right, old, labels)
    assert found["accuracy"]["difference"] == pytest.approx(2 / 40) and found["auroc"] is None
    assert found["balanced_accuracy"]["difference"] == pytest.approx(2 / 40)
    assert differences(old, right, labels)["accuracy"]["difference"] == pytest.approx(-2 / 40)


def test_nothing_is_known_of_the_spread_where_no_case_is_ranked_otherwise():
    labels = np.arange(8) % 2
    new = np.stack([1 - (p := labels * 0.8 + 0.1), p], 1)
    assert differences(new, (new + 0.5) / 2, labels)["auroc"] is None
    assert differences(new, new, labels)["auroc"] == {"difference": 0, "low": 0, "high": 0}


def test_sites_are_counted():
    up, down = ({"accuracy": {"difference": d, "low": d - 0.1, "high": d + 0.1}} for d in (0.2, -0.2))
    found = counted({"a": up, "b": up, "c": down, "d": None}, "accuracy")
    assert found == {"gains": 2, "no difference found": 0, "loses": 1}
