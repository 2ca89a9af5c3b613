import pytest

from medpfl.core.measure import Measure
from medpfl.core.numbers_in_words import size
from medpfl.report.headline import headline, summary
from medpfl.report.measures import change, printed, spread, with_interval
from medpfl.report.page_run import partition
from medpfl.report.words import duration, further, percent, went_wrong
from medpfl.tasks.classification import Classification

ACCURACY, _, AUROC, *_ = Classification.measures


def test_what_went_wrong_in_a_line_for_each_site():
    failures = [{"round": 2, "site": f"site-{n % 7}", "reason": f"too far {n}"} for n in range(10)]
    assert went_wrong([]) == []
    lines = went_wrong(failures)
    assert lines[0] == "site-0, round 2: too far 0; 1 failure more" and lines[3] == "site-3, round 2: too far 3"
    assert lines[5:] == ["Failures at 2 sites more: results.json, failures."]
    assert went_wrong(failures[5:7]) == ["site-5, round 2: too far 5", "site-6, round 2: too far 6"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (240_000, "240 kB"),
        (999_600, "1.0 MB"),
        (7_200_000, "7.2 MB"),
        (3.2e15, "3200 TB"),
    ],
)
def test_size(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (4.24, "4.2 s"),
        (59.97, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (7199, "2 h 00 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"),
        (0, "0 %"),
        (1 / 200, "< 1 %"),
        (0.006, "1 %"),
        (0.25, "25 %"),
        (0.998, "> 99 %"),
        (1, "100 %"),
    ],
)
def test_a_share_is_none_or_all_only_where_it_is(share, text):
    assert percent(share) == text


def test_what_is_printed_as_zero_has_no_sign():
    kappa = Measure("kappa", "kappa", least=-1)
    assert (kappa.number(-0.0001), kappa.number(-0.001)) == ("0.000", "-0.001")


def test_points_have_a_sign_unless_they_are_zero():
    assert change(ACCURACY, 0.0234) == "+2.3"
    assert change(ACCURACY, -0.0234, 0.004) == "-2.3 ± 0.4"
    assert change(ACCURACY, -0.0001) == change(ACCURACY, 0.0) == "0.0"
    assert change(ACCURACY, None) == "–"


def test_scores_and_intervals():
    assert printed(ACCURACY, None) == "–"
    assert spread(ACCURACY, 0.91449, 0.0274) == "0.914 ± 0.027"
    assert spread(ACCURACY, 0.9, None) == "0.900"
    assert with_interval(AUROC, {"auroc": 0.98, "auroc_ci95": [0.97, 0.99]}) == "0.980 [0.970, 0.990]"
    assert with_interval(AUROC, {"auroc": 0.98, "auroc_ci95": None}) == "0.980"
    assert with_interval(AUROC, {"auroc": None, "auroc_ci95": None}) == "–"


def test_summary_names_the_gap_to_local_training(five):
    # Differences -2, +1, -5, 0, -5.5 points: mean -2.3.
    assert summary(five) == (
        "FedAP: 0.914 mean accuracy over 5 sites, 0.023 below training alone (worst site site-3 0.870)"
    )


def test_summary_above_level_and_without_reference(make_run):
    accuracy = {"a": 0.9, "b": 0.8}
    above = summary(make_run("fedbn", accuracy, {"a": 0.85, "b": 0.75}))
    assert above == "FedBN: 0.850 mean accuracy over 2 sites, 0.050 above training alone (worst site b 0.800)"
    assert ", level with training alone" in summary(make_run("fedbn", accuracy, accuracy))
    assert summary(make_run("fedbn", accuracy)) == "FedBN: 0.850 mean accuracy over 2 sites (worst site b 0.800)"
    assert "training alone" not in summary(make_run("local", accuracy, accuracy)).removeprefix("Local training")


def test_summary_without_numbers(empty, running):
    assert summary(empty) == "FedAvg: no accuracy was measured"
    assert summary(running) == "FedAP: not finished, 2 of 6 rounds"


def test_headline(five, empty, running, make_run):
    assert headline(five) == (
        "A site's own model, trained with FedAP, is right in 91.4 of 100 test cases (average of 5 sites; lowest at "
        "site-3 with 87.0). That is 2.3 fewer than if each site trains alone. Taking part helps 1 of 5 sites."
    )
    assert headline(empty) == "FedAvg has finished, but no site could measure its accuracy."
    assert headline(running) == "FedAP is still running: 2 of 6 rounds are done."
    assert "trained on its own data alone" in headline(make_run("local", {"a": 0.9}, {"a": 0.9}))
    assert "equally well" in headline(make_run("fedap", {"a": 0.9}, {"a": 0.9}))


def test_the_average_names_whose_models_it_is_of(five):
    five["new"] = {"models": 5, "pooled": {"auroc": 0.9}, "held_out": {"north": {"auroc": 0.8}}}
    assert further(five) == [
        "The average of 5 sites' models on all sites' test data: AUC 0.900.",
        "The average of 5 sites' models at north, which took no part in training: AUC 0.800.",
    ]
    five["new"] |= {"models": 1, "held_out": {}}
    assert further(five) == ["1 site's model alone on all sites' test data: AUC 0.900."]


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        ({"preprocessing": {"size": 64}}, "patients"),
        ({"reading": {"length": 200, "normalise": "window", "divide": []}}, "windows"),
        ({"reading": {"size": 32, "fit": "crop"}}, "images"),
        ({}, "images"),
    ],
)
def test_samples_are_called_what_they_are(make_run, data, samples):
    run = make_run("fedavg", {"a": 0.9, "b": 0.8})
    run["data"] |= data
    part = partition(run)
    assert f" {samples} at " in part.note
    assert samples.capitalize() in part.figure
