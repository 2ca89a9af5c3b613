"""What one more local training changes, on a site's own data and on the others'."""

import hashlib
import json
from statistics import fmean

import pytest
import tiny

from medpfl.config.run import make_config
from medpfl.engine.federation import Federation
from medpfl.runs.experiment import run_experiment
from medpfl.server.rounds import next_round
from medpfl.training import loop
from medpfl.training.loop import TrainingDiverged


def start(out, algorithm="local", rounds=1, epochs=1, **options):
    settings = {"images": 8, "warmup": 1, "admm_iterations": 1} if algorithm == "fedimpres" else {}
    config = make_config(
        algorithm=algorithm,
        settings=settings,
        model="lenet5",
        sites=3,
        rounds=rounds,
        local_epochs=epochs,
        train_fraction=0.1,
        partition="equal-dirichlet:0.3",
        device="cpu",
        alone="no",
    )
    return run_experiment(config, out, **{"env": "inprocess", "threads": 1, **options})


def state_of(out):
    return {f: hashlib.md5(f.read_bytes()).hexdigest() for f in sorted((out / "state").rglob("*")) if f.is_file()}


@pytest.mark.slow
def test_local_training_after_the_last_round_is_the_next_round(tmp_path):
    one = start(tmp_path / "one", rounds=1, forgotten=True)
    two = start(tmp_path / "two", rounds=2)
    assert one["forgetting"]["round"] == 2
    for site, measured in one["forgetting"]["sites"].items():
        by = {"auroc_ci95_by": "sample"}
        assert measured["own"]["before"] | by == one["final"]["last"]["sites"][site]
        assert measured["own"]["after"] | by == two["final"]["last"]["sites"][site]


@pytest.mark.parametrize(
    "algorithm", ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedreg", "ditto"))]
)
def test_the_course_begins_and_ends_with_what_is_measured(tmp_path, algorithm):
    """Also of methods that read a site's data to another end, before that training or after it."""
    run = start(tmp_path, algorithm, forgotten=True, epochs=3)
    classes = run["data"]["classes"]
    for site, course in run["forgetting"]["course"].items():
        measured = run["forgetting"]["sites"][site]
        assert len(course) == 4  # before, and after each of three epochs
        for when, point in (("before", course[0]), ("after", course[3])):
            assert (point["own"], point["others"]) == tuple(measured[of][when]["accuracy"] for of in ("own", "others"))
            known = [share for share in point["classes"] if share is not None]
            assert len(point["classes"]) == len(classes)
            assert fmean(known) == pytest.approx(measured["others"][when]["balanced_accuracy"])
        assert len({tuple(point["classes"]) for point in course}) > 1
    page = (tmp_path / "report.html").read_text()
    assert "Course of one local training" in page and "share that is right of each class" in page


@pytest.mark.slow
def test_before_it_sites_of_fedavg_have_one_model(tmp_path):
    run = start(tmp_path, "fedavg", forgotten=True)
    tested = run["final"]["last"]["sites"]
    for site, measured in run["forgetting"]["sites"].items():
        others = [entry for name, entry in tested.items() if name != site]
        right, n = sum(e["n"] * e["accuracy"] for e in others), sum(e["n"] for e in others)
        assert measured["others"]["before"]["n"] == n
        assert measured["others"]["before"]["accuracy"] == pytest.approx(right / n)
        assert measured["others"]["after"] != measured["others"]["before"]
    sites = run["forgetting"]["sites"].values()
    mean = sum(s["others"]["after"]["accuracy"] for s in sites) / len(sites)
    assert run["forgetting"]["mean"]["others"]["after"]["accuracy"] == pytest.approx(mean)


@pytest.mark.slow
def test_fedimpres_measures_it_unasked_and_with_an_impression(tmp_path):
    run = start(tmp_path, "fedimpres", rounds=2)
    assert set(run["forgetting"]["sites"]) == {"site-1", "site-2", "site-3"}
    page = (tmp_path / "report.html").read_text()
    assert "What local training makes a model forget" in page


@pytest.mark.slow
def test_it_is_made_for_a_finished_run_and_changes_nothing_else(tmp_path):
    first = start(tmp_path, "fedbn")
    assert "forgetting" not in first
    before = state_of(tmp_path)
    again = start(tmp_path, "fedbn", resume=True, forgotten=True)
    assert json.loads((tmp_path / "results.json").read_text())["forgetting"] == again["forgetting"]
    assert {k: v for k, v in again.items() if k != "forgetting"} == first
    assert state_of(tmp_path) == before
    assert start(tmp_path, "fedbn", resume=True, forgotten=True) == again


def test_a_site_that_cannot_train_is_named_and_the_run_keeps_its_results(tmp_path, monkeypatch):
    first = start(tmp_path, "fedavg")

    def diverges(*_, **__):
        raise TrainingDiverged("the training loss became nan")

    monkeypatch.setattr(loop, "train_epochs", diverges)
    again = start(tmp_path, "fedavg", resume=True, forgotten=True)
    assert "forgetting" not in again
    assert again["final"] == first["final"]
    assert "forgetting was not measured: site-1: the training loss became nan" in again["notes"]


@pytest.mark.parametrize(("method", "lasts"), [("scaffold", True), ("fedcurv", False)])
def test_of_what_sites_send_beside_their_models_only_what_lasts_goes_with_the_round_after_the_last(method, lasts):
    """A control variate is the round before's; sums of information are of models that are gone."""
    run_config = tiny.config(method)
    state, _ = tiny.run(run_config)
    brought = next_round(tiny.plan_of(Federation.of(run_config)), state)["site-1"].tensors
    assert any("/" in name for name in brought) is lasts
