"""Ranks where float64 has no room left beside 1, and intervals over patients where patients have several samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from tiny import Net, images

from medpfl.core.site_data import ImageTensors
from medpfl.report.measures import interval_by
from medpfl.tasks import TASKS
from medpfl.tasks.auc import as_log_odds, macro_auc
from medpfl.tasks.evaluation import Cases, cases, cases_of_all
from medpfl.tasks.intervals import (
    between_patients,
    bootstrap_interval,
    degrees_of_cases,
    drawn_interval,
    mean_gain,
    mean_interval,
)
from medpfl.tasks.measures import measures
from medpfl.tasks.paired import differences

CLASSIFICATION = TASKS["classification"]


def softmax(logits):
    return torch.tensor(logits, dtype=torch.float64).softmax(1).numpy()


def test_cases_that_float64_takes_for_equally_certain_keep_their_order():
    # Differences of logits 60, 50, 45, 40: all four probabilities of the first class are 1.0.
    p = softmax([[60.0, 0.0], [50.0, 0.0], [45.0, 0.0], [40.0, 0.0]])
    assert (p[:, 0] == 1.0).all()
    found = measures(p, np.array([0, 0, 1, 1]))
    assert found["auroc"] == 1.0
    worse = measures(p, np.array([1, 1, 0, 0]))
    assert worse["auroc"] == 0.0
    np.testing.assert_allclose(as_log_odds(p)[:, 0], [61, 51, 46, 41], rtol=1e-12)
    gained = differences(p, p[[1, 3, 0, 2]], np.array([0, 0, 1, 1]))["auroc"]
    assert gained["difference"] == 0.75


def test_scores_rank_as_log_odds_do_and_equal_ones_stay_equal():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 4)) * rng.choice([1, 10, 100, 300], size=(400, 1))
    scores = as_log_odds(softmax(logits))
    others = np.stack([logsumexp(np.delete(logits, c, 1), axis=1) for c in range(4)], 1)
    for c in range(4):
        odds = logits[:, c] - others[:, c]
        far = np.argsort(odds)[np.diff(np.sort(odds), prepend=-np.inf) > 1e-6]
        assert (np.diff(scores[far, c]) > 0).sum() >= len(far) - 1 - (odds < -700).sum()
        assert (np.diff(scores[far, c]) >= 0).all()
    assert np.isfinite(scores).all()
    tied = as_log_odds(np.array([[0.7, 0.2, 0.1], [0.7, 0.15, 0.15]]))
    assert tied[0, 0] == tied[1, 0] == 0.7


def drawn(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    score = rng.normal(size=n) + labels
    return softmax(np.stack([-score, score], 1)), labels


def width(ends):
    return ends[1] - ends[0]


def test_copies_of_a_patients_samples_tell_nothing_new():
    """Every case four times: by sample the interval halves, by patient it stays as it was."""
    p, labels = drawn(60)
    once = measures(p, labels)["auroc_ci95"]
    p4, l4, whose = (np.repeat(a, 4, axis=0) for a in (p, labels, np.arange(60)))
    by_sample = measures(p4, l4)["auroc_ci95"]
    by_patient = measures(p4, l4, whose)["auroc_ci95"]
    assert width(by_sample) == pytest.approx(width(once) / 2, rel=0.05)
    assert width(by_patient) == pytest.approx(width(once), rel=0.05)
    other, _ = drawn(60, 1)
    for measure in ("accuracy", "balanced_accuracy", "auroc"):
        single, copied = (
            differences(*args)[measure] for args in ((p, other, labels), (p4, np.repeat(other, 4, axis=0), l4, whose))
        )
        assert single["difference"] == pytest.approx(copied["difference"])
        assert width((copied["low"], copied["high"])) == pytest.approx(width((single["low"], single["high"])), rel=0.1)


def test_means_by_hand():
    # Two patients with the means 1 and 3 of two cases each: errors of the mean add up to (1/2)^2 + (1/2)^2, times 2.
    values, whose = np.array([1.0, 1.0, 3.0, 3.0]), np.array([7, 7, 2, 2])
    low, high = mean_interval(values, whose)
    assert (low + high) / 2 == 2
    assert high - 2 == pytest.approx(12.706204736 * 1.0)
    assert mean_interval(values, np.zeros(4)) is None
    assert mean_interval(values) == mean_interval(values, np.arange(4))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=4, max_size=30), st.integers(0, 99))
def test_variance_between_patients_is_that_of_bell_and_mccaffrey(cases_, seed):
    """By the matrices: each patient's term is linear in the cases, which are independent, or alike within a patient."""
    whose, group = np.array(cases_).T
    members = group == np.arange(3)[:, None]
    values, terms = np.random.default_rng(seed).normal(size=len(whose)), np.zeros((6, len(whose)))
    errors = np.zeros(members.shape)
    for g, own in enumerate(members):
        if len(np.unique(whose[own])) < 2:
            continue
        residual = np.diag(own.astype(float)) - np.outer(own, own) / own.sum()
        errors[g] = residual @ values / own.sum()
        for k in np.unique(whose[own]):
            his = own & (whose == k)
            terms[k] += his @ residual / own.sum() / np.sqrt(1 - his.sum() / own.sum())
    variance, degrees = between_patients(errors, members, whose)
    assert variance == pytest.approx(np.square(terms @ values).sum())
    if terms.any():
        same = (whose[:, None] == whose) & (group[:, None] == group)
        covariances = [terms @ of_cases @ terms.T for of_cases in (np.eye(len(whose)), same.astype(float))]
        expected = min(np.trace(of) ** 2 / np.square(of).sum() for of in covariances)
        assert degrees == pytest.approx(max(1, expected), rel=1e-4)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=25))
def test_degrees_of_cases_are_those_of_patients_of_one_case_each(rows):
    members = np.array(rows).T
    _, degrees = between_patients(np.zeros(members.shape), members, None)
    assert degrees_of_cases(members) == pytest.approx(degrees, rel=1e-4)


def test_one_site_after_another_keeps_its_patients_apart():
    two, each, bags = Cases("patient", np.array([4, 4, 9])), Cases("sample"), Cases("patient")
    together = cases_of_all([two, two], [3, 3])
    assert (together.by, together.whose.tolist()) == ("patient", [0, 0, 1, 2, 2, 3])
    together = cases_of_all([two, bags], [3, 2])
    assert (together.by, together.whose.tolist()) == ("patient", [0, 0, 1, 2, 3])
    together = cases_of_all([each, two], [2, 3])
    assert (together.by, together.whose.tolist()) == ("sample", [0, 1, 2, 2, 3])
    assert cases_of_all([bags, bags], [2, 2]) == bags and cases_of_all([each, bags], [2, 2]) == each
    # Alone a site's one patient tells nothing of others; beside another's he is one of two.
    one = Cases("sample", np.zeros(3, dtype=int))
    assert cases_of_all([one], [3]).by == "sample" and cases_of_all([one, one], [3, 3]).by == "patient"


def test_of_patients_with_as_many_cases_there_is_one_degree_of_freedom_less():
    whose = np.repeat(np.arange(7), 3)
    errors = np.random.default_rng(0).normal(size=(1, 21))
    sums = (errors := errors - errors.mean()).reshape(7, 3).sum(1)
    expected = (np.square(sums).sum() * 7 / 6, 6)
    assert between_patients(errors, np.ones((1, 21), dtype=bool), whose) == pytest.approx(expected)
    assert between_patients(errors, np.ones((1, 21), dtype=bool), np.zeros(21)) == (0, 1)


def test_percentiles_lie_as_far_out_as_so_few_patients_ask():
    # Student's 2.5706 of 5 degrees, times the root of 6 / 5, is 2.8159: 0.2432 % lie below in a normal distribution.
    found = np.arange(10001) / 100
    assert drawn_interval(found, 10001, 6, 50) == [pytest.approx(0.2432, abs=1e-3), pytest.approx(99.7568, abs=1e-3)]
    assert drawn_interval(found, 10001, 10**6, 50) == [pytest.approx(2.5, abs=1e-3), pytest.approx(97.5, abs=1e-3)]
    assert drawn_interval(found, 10001, 5, 50) is None
    assert drawn_interval(found, 20002, 6, 50) is None


@pytest.mark.parametrize(("patients", "least"), [(6, 0.90), (12, 0.93)])
def test_a_bootstraps_intervals_hold_about_as_often_as_they_say(patients, least):
    """Of a mean; by plain percentiles 0.85 and 0.91 of them would, which is too few for this test."""
    rng, hits = np.random.default_rng(patients), 0
    for _ in range(2000):
        values = rng.normal(size=patients)
        drawn = values[rng.integers(patients, size=(400, patients))].mean(1)
        low, high = drawn_interval(drawn, 400, patients, values.mean())
        hits += low <= 0 <= high
    assert least <= hits / 2000 <= 0.97


def test_drawn_patients_bring_all_their_cases():
    whose, seen = np.array([1, 0, 1, 1]), set()
    bootstrap_interval(lambda rows: seen.add(tuple(sorted(rows.tolist()))) or 0.0, 4, whose, draws=50)
    assert seen == {(1, 1), (0, 1, 2, 3), (0, 0, 2, 2, 3, 3)}


def test_what_rows_are_and_what_results_say_of_them():
    plain = images(test=6)
    assert cases(plain, "test") == Cases("sample", None)
    persons = {part: torch.arange(len(y)) // 2 for part, y in plain.labels.items()}
    of_two = ImageTensors(plain.images, plain.labels, persons=persons)
    assert cases(of_two, "test").by == "patient"
    assert cases(of_two, "test").whose.tolist() == [0, 0, 1, 1, 2, 2]
    # Bags are patients' already; a person with two labels is two of them.
    bags = {part: torch.arange(len(y)) // 2 for part, y in plain.labels.items()}
    assert cases(ImageTensors(plain.images, plain.labels, bags), "test") == Cases("patient", None)
    one = {part: y // 2 for part, y in bags.items()}
    assert cases(ImageTensors(plain.images, plain.labels, bags, one), "test").whose.tolist() == [0, 0, 1]
    # Of one person's samples nothing tells how persons differ.
    alone = {part: torch.zeros_like(y) for part, y in plain.labels.items()}
    assert cases(ImageTensors(plain.images, plain.labels, persons=alone), "test").by == "sample"

    torch.manual_seed(0)
    model = Net()
    by_sample, by_patient = (CLASSIFICATION.evaluate(model, data, "test") for data in (plain, of_two))
    assert (by_sample["auroc_ci95_by"], by_patient["auroc_ci95_by"]) == ("sample", "patient")
    assert by_sample["auroc"] == by_patient["auroc"]
    (auroc,) = (m for m in CLASSIFICATION.measures if m.name == "auroc")
    assert interval_by(auroc, [by_patient, by_patient]) == " by patient"
    assert interval_by(auroc, [by_patient, by_sample]) == interval_by(auroc, [{}]) == ""


def test_several_labels():
    rng = np.random.default_rng(0)
    truth = rng.integers(-1, 2, (40, 3))
    p = np.clip(0.5 + 0.2 * truth + 0.2 * rng.normal(size=truth.shape), 0.01, 0.99)
    whose = np.arange(40)
    four = tuple(np.repeat(a, 4, axis=0) for a in (p, truth))
    task = TASKS["multi-label"]
    once, again = task.measured((p, truth)), task.measured(four, Cases("patient", np.repeat(whose, 4)))
    assert (once["auroc_ci95_by"], again["auroc_ci95_by"]) == ("sample", "patient")
    assert width(again["auroc_ci95"]) == pytest.approx(width(once["auroc_ci95"]), rel=0.05)
    assert macro_auc(p[:, :1].T, truth[:, :1].T == 1, truth[:, :1].T >= 0)[0] == once["auroc_by_label"][0]


def test_cases_that_differ_alike_tell_nothing_of_their_spread():
    """Of two cases that are a grade better each, Student's interval would have no width, and be called a gain."""
    assert mean_gain(np.full(2, 0.1)) is None and mean_gain(np.ones(3), np.array([0, 0, 1])) is None
    assert mean_gain(np.zeros(3)) == {"difference": 0, "low": 0, "high": 0}
    gained = mean_gain(np.array([1.0, 2.0]))
    assert gained["difference"] == 1.5 and gained["low"] < 0 < gained["high"]
    labels = np.array([0, 3])
    better = TASKS["ordinal"].gained((np.eye(5)[labels], labels), (np.eye(5)[labels + 1], labels))
    assert better["mae"] is None
