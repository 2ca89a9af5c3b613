import json
import time

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import norm, t
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from medpfl.tasks import TASKS
from medpfl.tasks.auc import hanley_mcneil, macro_auc
from medpfl.tasks.classification import Classification
from medpfl.tasks.evaluation import mixed
from medpfl.tasks.measures import measures
from medpfl.tasks.summary import summary

MEASURES = [measure for measure in TASKS["classification"].measures if not measure.further]
NAMES = [measure.name for measure in MEASURES]


def predictions(n, classes, seed=0, step=0.0, signal=1.0):
    """Probabilities of some skill, rounded to a step so that there are ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    scores = rng.normal(size=(n, classes)) + signal * np.eye(classes)[labels]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return (np.round(probabilities / step) * step if step else probabilities), labels


@pytest.mark.parametrize("task", ["classification", "ordinal"])
def test_classes_that_are_answered_for_no_case_are_counted(task):
    """Of two cases of class 1 one is not finite, so that it has no answer; class 3 has no case."""
    probabilities = np.array([[0.9, 0.1, 0, 0], [0.6, 0.4, 0, 0], [np.nan, 1, 0, 0], [0.2, 0.1, 0.7, 0]])
    assert TASKS[task].never_answered((probabilities, np.array([0, 1, 1, 2]))) == {1: 2}
    assert TASKS["multi-label"].never_answered((probabilities, np.ones((4, 4)))) == {}


def binary(positives, negatives):
    """Both columns of a two-class prediction; the second is the score of class 1."""
    score = np.concatenate([positives, negatives])
    labels = np.array([1] * len(positives) + [0] * len(negatives))
    return np.stack([1 - score, score], axis=1), labels


def half_width(interval):
    low, high = (np.log(p / (1 - p)) for p in interval)
    return (high - low) / 2


def reach(degrees, variance, area):
    """Of an interval on the logit scale, in Student's deviations."""
    return t.ppf(0.975, degrees) * variance**0.5 / (area * (1 - area))


def degrees_of(*groups):
    """Satterthwaite's of a sum of means over groups of cases, from the covariance matrix of what the cases add."""
    terms = []
    for group in groups:
        own = np.array(group, dtype=float)
        n = own.sum()
        terms.append((np.diag(own) - np.outer(own, own) / n) / (n * (n - 1)))
    covariance = sum(terms)
    return np.trace(covariance) ** 2 / np.square(covariance).sum()


def pair(x, y):
    return 1.0 if x > y else 0.5 if x == y else 0.0


def brute_force(probabilities, labels):
    """Macro AUC and the variance from every pair, class by class; covariances of classes one by one."""
    n, classes = probabilities.shape
    areas, parts = [], []
    for c in range(classes):
        pos = [i for i in range(n) if labels[i] == c]
        neg = [i for i in range(n) if labels[i] != c]
        if not pos or not neg:
            continue
        value = {i: sum(pair(probabilities[i, c], probabilities[j, c]) for j in neg) / len(neg) for i in pos}
        value |= {j: sum(pair(probabilities[i, c], probabilities[j, c]) for i in pos) / len(pos) for j in neg}
        area = sum(value[i] for i in pos) / len(pos)
        size = {**dict.fromkeys(pos, len(pos)), **dict.fromkeys(neg, len(neg))}
        areas.append(area)
        parts.append([(value[i] - area) / (size[i] * (size[i] - 1)) ** 0.5 for i in range(n)])
    covariance = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in parts] for p in parts]
    return sum(areas) / len(areas), sum(map(sum, covariance)) / len(areas) ** 2


@pytest.mark.parametrize("classes", [2, 3, 11])
@pytest.mark.parametrize("step", [0.0, 0.1])
def test_agrees_with_scikit_learn(classes, step):
    probabilities, labels = predictions(300, classes, seed=classes, step=step)
    found = measures(probabilities, labels)
    areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in range(classes)]
    assert found["auroc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert found["auroc_classes"] == classes
    assert found["accuracy"] == pytest.approx((probabilities.argmax(1) == labels).mean())
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, probabilities.argmax(1)))


@pytest.mark.parametrize(("n", "classes", "step"), [(25, 2, 0.0), (40, 2, 0.2), (40, 3, 0.0), (50, 4, 0.1)])
def test_variance_is_delongs(n, classes, step):
    probabilities, labels = predictions(n, classes, seed=n, step=step)
    area, variance = brute_force(probabilities, labels)
    found = measures(probabilities, labels)
    assert found["auroc"] == pytest.approx(area, abs=1e-12)
    groups = [labels == c for c in range(classes)]
    degrees = degrees_of(*groups, *(~group for group in groups))
    assert half_width(found["auroc_ci95"]) == pytest.approx(reach(degrees, variance, area), rel=1e-6)


def test_two_classes_give_classical_delong():
    positives, negatives = np.array([0.9, 0.7, 0.6, 0.35]), np.array([0.8, 0.5, 0.35, 0.2, 0.1])
    v10 = np.array([np.mean([pair(x, y) for y in negatives]) for x in positives])
    v01 = np.array([np.mean([pair(x, y) for x in positives]) for y in negatives])
    variance, area = v10.var(ddof=1) / 4 + v01.var(ddof=1) / 5, v10.mean()
    found = measures(*binary(positives, negatives))
    assert found["auroc"] == pytest.approx(area)
    # Both classes say the same: groups of 4 and 5 cases, whose means vary as 1/4 and 1/5 of a case's do.
    degrees = (1 / 4 + 1 / 5) ** 2 / (1 / 4**2 / 3 + 1 / 5**2 / 4)
    assert half_width(found["auroc_ci95"]) == pytest.approx(reach(degrees, variance, area), rel=1e-6)


@pytest.mark.parametrize("positives", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 10))])
def test_of_a_class_with_few_cases_the_interval_holds(positives):
    """By 1.96 deviations it would at 74, 82, 88 and 91 of 100."""
    rng, hits, truth = np.random.default_rng(positives), 0, norm.cdf(1.2 / np.sqrt(2))
    for _ in range(600):
        found = measures(*binary(rng.normal(1.2, 1, positives), rng.normal(0, 1, 200)))
        hits += found["auroc_ci95"][0] <= truth <= found["auroc_ci95"][1]
    assert hits / 600 >= 0.92


def test_hanley_and_mcneil_by_hand():
    """Of one positive q1 has no part: (0.8 * 0.2 + 29 * (2 * 0.64 / 1.8 - 0.64)) / 30; of one negative q2 has none."""
    assert hanley_mcneil(0.8, 1, 30) == pytest.approx((0.16 + 29 * (1.28 / 1.8 - 0.64)) / 30)
    assert hanley_mcneil(0.8, 30, 1) == pytest.approx((0.16 + 29 * (0.8 / 1.2 - 0.64)) / 30)


def test_the_positives_of_one_patient_have_the_interval_of_one():
    """Three of them above six, seven and eight of nine negatives."""
    scores, whose = np.r_[5.5, 6.5, 7.5, 0:9][None], np.r_[0, 0, 0, 1:10]
    area, (low, high), _ = macro_auc(scores, np.arange(12)[None] < 3, whose=whose)
    assert area == pytest.approx(7 / 9)
    half = 1.959964 * np.sqrt(hanley_mcneil(area, 1, 9)) / (area * (1 - area))
    assert (low, high) == pytest.approx((expit(logit(area) - half), expit(logit(area) + half)))


LARGER = [(0.8, 20, 60), (0.95, 30, 30), (0.99, 10, 10)]


@pytest.mark.parametrize(
    ("area", "m", "k"), [(0.97, 5, 50), (0.9, 1, 30), *(pytest.param(*of, marks=pytest.mark.slow) for of in LARGER)]
)
def test_interval_covers(area, m, k):
    # The last cases are often ranked perfectly, or have one positive, and rest on the fallback.
    rng = np.random.default_rng(7)
    shift, hits, repeats = np.sqrt(2) * norm.ppf(area), 0, 300
    for _ in range(repeats):
        low, high = measures(*binary(rng.normal(shift, 1, m), rng.normal(0, 1, k)))["auroc_ci95"]
        hits += low <= area <= high
    assert hits / repeats >= 0.9


def test_interval_covers_the_mean_over_classes():
    truth = measures(*predictions(40000, 4, seed=1))["auroc"]
    intervals = [measures(*predictions(60, 4, seed=seed))["auroc_ci95"] for seed in range(100, 400)]
    assert 0.91 <= np.mean([low <= truth <= high for low, high in intervals]) <= 0.985


def test_perfect_ranking_has_an_interval():
    few = measures(*binary([0.9, 0.8, 0.7], [0.3, 0.2, 0.1]))
    many = measures(*binary(np.linspace(0.6, 0.9, 50), np.linspace(0.1, 0.4, 50)))
    assert few["auroc"] == many["auroc"] == few["auroc_ci95"][1] == 1.0
    assert 0.2 < few["auroc_ci95"][0] < many["auroc_ci95"][0] < 1
    worst = measures(*binary([0.1, 0.2], [0.8, 0.9]))
    assert worst["auroc"] == worst["auroc_ci95"][0] == 0.0 < worst["auroc_ci95"][1] < 1


def test_equal_scores_are_chance():
    found = measures(np.full((20, 2), 0.5), np.arange(20) % 2)
    low, high = found["auroc_ci95"]
    assert found["auroc"] == 0.5
    assert low < 0.3 < 0.7 < high


def test_absent_classes_are_left_out():
    probabilities, labels = predictions(80, 3, seed=3)
    wide = np.insert(probabilities, [1, 3], 0.0, axis=1)
    moved = np.array([0, 2, 3])[labels]
    narrow, found = measures(probabilities, labels), measures(wide, moved)
    assert found == narrow
    assert found["auroc_classes"] == 3


def test_one_class_only():
    found = measures(np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]]), np.array([0, 0, 0]))
    assert found == {
        "n": 3,
        "accuracy": pytest.approx(2 / 3),
        "balanced_accuracy": pytest.approx(2 / 3),
        "auroc": None,
        "auroc_ci95": None,
        "auroc_classes": 0,
    }


def test_no_samples_and_one_sample():
    none = measures(np.empty((0, 4)), np.empty(0, dtype=int))
    assert none["n"] == none["auroc_classes"] == 0
    assert none["accuracy"] is none["balanced_accuracy"] is none["auroc"] is none["auroc_ci95"] is None
    one = measures(np.array([[0.2, 0.8]]), np.array([1]))
    assert (one["n"], one["accuracy"], one["balanced_accuracy"], one["auroc"]) == (1, 1.0, 1.0, None)


@pytest.mark.parametrize("seed", range(30))
def test_never_nan_on_small_skewed_sites(seed):
    rng = np.random.default_rng(seed)
    n, classes = rng.integers(1, 8), rng.integers(1, 6)
    probabilities = np.round(rng.dirichlet(np.ones(classes), size=n), 1)
    found = measures(probabilities, rng.integers(classes, size=n))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    if found["auroc"] is not None:
        low, high = found["auroc_ci95"]
        assert 0 <= low <= found["auroc"] <= high <= 1
        assert low < high


def test_samples_that_are_not_finite_count_as_wrong():
    predicted = np.array([[np.nan, np.nan], [0.1, 0.9], [0.8, 0.2]]), np.array([0, 1, 0])
    assert TASKS["classification"].by_class([predicted]) == [0.5, 1]
    found = measures(*predicted)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["auroc"] is found["auroc_ci95"] is None
    assert found["auroc_classes"] == 2  # 0 would say that all cases are of one class


@pytest.mark.parametrize(
    ("shape", "labels"), [((3, 2), [0, 1]), ((3,), [0, 1, 0]), ((2, 2), [0, 2]), ((2, 2), [-1, 0])]
)
def test_refuses_what_does_not_fit(shape, labels):
    with pytest.raises(ValueError, match=r"expected probabilities|labels must lie"):
        measures(np.ones(shape), np.array(labels))


def test_summary_leaves_out_what_could_not_be_computed():
    sites = {
        "site-1": {"accuracy": 0.5, "balanced_accuracy": 0.4, "auroc": None},
        "site-2": {"accuracy": 0.9, "balanced_accuracy": 0.6, "auroc": 0.8},
        "site-3": {"accuracy": 0.7, "balanced_accuracy": 0.4, "auroc": None},
        "site-4": {"accuracy": None, "balanced_accuracy": None, "auroc": None},
    }
    found = summary(sites, MEASURES)
    assert found["mean"] == {"accuracy": pytest.approx(0.7), "balanced_accuracy": pytest.approx(1.4 / 3), "auroc": 0.8}
    assert found["worst"] == {"accuracy": 0.5, "balanced_accuracy": 0.4, "auroc": 0.8}
    assert found["worst_site"] == {"accuracy": "site-1", "balanced_accuracy": "site-1", "auroc": "site-2"}
    assert found["std"] == {
        "accuracy": pytest.approx(0.2),
        "balanced_accuracy": pytest.approx(0.1154701),
        "auroc": None,
    }
    assert found["counted"] == {"accuracy": 3, "balanced_accuracy": 3, "auroc": 1}
    assert summary({}, MEASURES)["mean"] == dict.fromkeys(NAMES)


def test_a_site_with_a_measure_of_0_counts():
    found = summary({"north": {"accuracy": 0.0}, "south": {"accuracy": 1.0}}, MEASURES[:1])
    assert (found["mean"], found["worst"], found["counted"]) == ({"accuracy": 0.5}, {"accuracy": 0}, {"accuracy": 2})


def test_of_errors_the_largest_is_the_worst():
    measure = [m for m in TASKS["ordinal"].measures if m.name == "mae"]
    found = summary({"north": {"mae": 0.5}, "south": {"mae": 1.5}}, measure)
    assert (found["worst"], found["worst_site"]) == ({"mae": 1.5}, {"mae": "south"})


def test_a_federation_is_measured_in_a_moment():
    sites = [predictions(1500, 11, seed=seed) for seed in range(20)]
    start = time.process_time()
    summary({str(i): measures(*site) for i, site in enumerate(sites)}, MEASURES)
    assert time.process_time() - start < 1.0


def test_a_task_whose_pooled_measures_are_its_own_has_the_interval_all_the_same():
    class Own(Classification):
        def pooled(self, predictions):
            return {"n": sum(len(labels) for _, labels in predictions)}

    found = Own().figures((np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])))
    assert found["n"] == 3 and found["auroc_ci95_by"] == "sample" and found["auroc_ci95"][1] <= 1


def test_a_case_on_which_a_model_breaks_costs_the_most_and_a_mix_leaves_it_to_the_other():
    """Else a network that gives no numbers would be the best of all."""
    whole, broken = (np.array([[0.75, 0.25], [0.5, 0.5]]), np.zeros(2, dtype=int)), np.full((2, 2), np.nan)
    broken[0] = 0.25, 0.75
    task = TASKS["classification"]
    assert task.losses((broken, whole[1])) == pytest.approx([-np.log(0.25), 12])
    assert task.losses((np.array([[0.0, 1.0]]), np.zeros(1, dtype=int))) == pytest.approx([12])
    for pair, weight in (((whole, (broken, whole[1])), 0.25), (((broken, whole[1]), whole), 0.75)):
        assert mixed(*pair, weight)[0] == pytest.approx(np.array([[0.625, 0.375], [0.5, 0.5]]))
    labels = np.array([[1, 0]])
    several = TASKS["multi-label"].losses((np.array([[np.nan, 0.0]]), labels))
    assert several == TASKS["multi-label"].losses((np.array([[0.0, 0.0]]), labels)) > 1
