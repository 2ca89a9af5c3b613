"""A run that ends early, as one whose loss is no number, ends no other run of its comparison or sweep."""

import csv
import json
import re
from unittest.mock import Mock

import pytest
import tiny

import medpfl
from medpfl.core.errors import RunEnded, UserError
from medpfl.report.reading import load_results
from medpfl.runs import comparison

TINY = {"sites": 2, "rounds": 1, "train_fraction": 0.05, "fractions": (0.2, 0.05, 0.05), "device": "cpu", "quiet": True}
OWN = {"data": "tiny:site_data", "model": "tiny:Net", "sites": 3, "rounds": 2, "device": "cpu", "quiet": True}
STEPS = {"batch_size": 4}
"""So that one step's weights have a loss within the epoch."""


@pytest.fixture(scope="module")
def rates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates")
    return folder, medpfl.compare(["fedavg"], seeds=1, out=folder, sweep="lr=0.01,1e30", settings=STEPS, **TINY).results


def test_a_sweep_has_no_figures_where_a_run_ended_early(rates):
    folder, found = rates
    for group in found["groups"]:
        there, none = group["points"]
        assert there["measures"]["accuracy"]["mean"] is not None and there["runs"]
        assert none["measures"]["accuracy"] == {"mean": None, "sd": None}
        assert none["runs"] == none["sites"] == {} and none["to_local"] is None
    assert [of["run"] for of in found["unfinished"]] == ["local/lr=1e_30", "fedavg/lr=1e_30"]
    assert all("the training loss became nan: lower the learning rate" in of["why"] for of in found["unfinished"])
    assert json.loads((folder / "sweep.json").read_text()) == found
    assert {row["lr"] for row in csv.DictReader((folder / "sweep.csv").open())} == {"0.01"}
    assert "| FedAvg | 1e+30 | – | – | – | – |" in (folder / "sweep.md").read_text()
    page = (folder / "report.html").read_text()
    assert re.search(r"Local training: 0\.\d+ at lr=0\.01 alone\. FedAvg: 0\.\d+ at lr=0\.01 alone\.", page)
    for file in ("sweep.md", "report.html"):
        assert "Ended early: local/lr=1e_30 with seed 0, fedavg/lr=1e_30 with seed 0" in (folder / file).read_text()


def test_a_comparison_is_of_the_others_and_its_command_fails(tmp_path, medpfl):
    words = ["--sites", "2", "--rounds", "1", "--train-fraction", "0.05", "--fractions", "0.2,0.05,0.05"]
    ran = medpfl(
        "compare", "fedavg", "fedavg:lr=1e30", *words, "--set", "batch_size=4", "--seeds", "1", "--device", "cpu",
        "--out", tmp_path, check=False,
    )  # fmt: skip
    assert ran.returncode == 2 and "medpfl: 1 run ended early; the tables are of the others" in ran.stderr
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert [group["label"] for group in found["groups"]] == ["Local training", "FedAvg"]
    assert found["unfinished"][0]["run"] == "fedavg_lr=1e30"
    assert "Ended early: fedavg_lr=1e30 with seed 0. What" in (tmp_path / "comparison.md").read_text()
    with (tmp_path / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["seed"], row["site"]) for row in rows] == [
        (run, "0", site) for run in ("local", "fedavg") for site in ("site-1", "site-2")
    ]
    for row in rows:
        results = json.loads((tmp_path / row["run"] / "seed-0" / "results.json").read_text())
        told = results["final"]["selected"]["sites"][row["site"]]
        assert (int(row["n"]), float(row["accuracy"])) == (told["n"], told["accuracy"])


@pytest.mark.slow
def test_a_method_is_there_with_all_seeds_or_not_at_all(tmp_path, monkeypatch, caplog):
    run = comparison.run_experiment

    def ends(config, out, **how):
        if (config.algorithm, config.seed) == ("fedavg", 1):
            raise RunEnded("power cut")
        return run(config, out, **how)

    monkeypatch.setattr(comparison, "run_experiment", ends)
    found = medpfl.compare(["fedavg", "fedbn"], seeds=2, out=tmp_path, new_test=False, **TINY).results
    assert [group["label"] for group in found["groups"]] == ["Local training", "FedBN"]
    assert found["unfinished"] == [{"run": "fedavg", "seed": 1, "why": "power cut"}]
    monkeypatch.setattr(comparison, "run_experiment", run)
    again = medpfl.compare(["fedavg", "fedbn"], seeds=2, out=tmp_path, new_test=False, **TINY).results
    assert [group["label"] for group in again["groups"]] == ["Local training", "FedAvg", "FedBN"]
    assert again["unfinished"] == []
    with caplog.at_level("WARNING"):
        medpfl.compare(["fedavg"], seeds=1, out=tmp_path, new_test=False, **TINY)
    left = "fedavg/seed-1, fedbn/seed-0, fedbn/seed-1, local/seed-1"
    assert f"runs that lie there too and are not in this table: {left}" in caplog.text
    with pytest.raises(
        UserError, match=r"is a comparison's folder and no run's: its page is .*report\.html; give its runs"
    ):
        load_results(tmp_path)


def test_the_page_names_it_also_where_one_run_is_left(tmp_path):
    with_one = medpfl.compare(["fedavg:lr=1e30"], seeds=1, out=tmp_path, settings=STEPS, **TINY)
    assert [group["label"] for group in with_one.results["groups"]] == ["Local training"]
    assert "Ended early: fedavg_lr=1e30 with seed 0" in (tmp_path / "report.html").read_text()


def test_means_over_some_of_the_sites_are_no_figures(tmp_path, monkeypatch):
    """Local training goes on without a site that diverges, and its mean is of others than the methods' beside it."""
    run = comparison.run_experiment

    def without_one(config, out, **how):
        found = run(config, out, **how)
        if config.algorithm == "local":
            del found["final"]["selected"]["sites"]["site-2"]
            found["unanswered"] = ["site-2"]
            found["failures"] = [{"round": 1, "site": "site-2", "reason": "the loss became nan"}]
        return found

    monkeypatch.setattr(comparison, "run_experiment", without_one)
    found = medpfl.compare(["fedavg"], seeds=1, out=tmp_path, new_test=False, **TINY).results
    assert [group["label"] for group in found["groups"]] == ["FedAvg"]
    assert found["unfinished"] == [{"run": "local", "seed": 0, "why": "site-2 has no test: the loss became nan"}]


def test_what_cannot_begin_is_no_run_that_ended_early(tmp_path, monkeypatch):
    """Every other run would end so, too."""

    monkeypatch.setattr(tiny, "images", Mock(side_effect=UserError("no scans there")))
    with pytest.raises(UserError, match="no scans there"):
        medpfl.compare(["fedavg"], seeds=1, out=tmp_path, **OWN)
    assert not (tmp_path / "fedavg").exists()


def test_overwriting_leaves_no_table_of_what_was_there(tmp_path):
    medpfl.compare(["fedavg"], seeds=1, out=tmp_path, settings=STEPS, new_test=False, **TINY)
    assert (tmp_path / "comparison.md").exists()
    with pytest.raises(UserError, match="Ended early"):
        medpfl.compare(["fedavg"], seeds=1, out=tmp_path, settings=STEPS | {"lr": 1e30}, overwrite=True, **TINY)
    assert not list(tmp_path.glob("comparison.*")) and not (tmp_path / "report.html").exists()


def test_nothing_is_compared_where_all_ended_early(tmp_path):
    with pytest.raises(UserError, match=r"Ended early: local with seed 0, fedavg with seed 0\. .* became nan"):
        medpfl.compare(["fedavg"], seeds=1, out=tmp_path, settings=STEPS | {"lr": 1e30}, **TINY)
    assert not (tmp_path / "comparison.json").exists()
