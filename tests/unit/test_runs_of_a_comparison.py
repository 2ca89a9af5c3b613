"""Which runs of a comparison are made and how, what is left out of its tables, and where it has its place."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from tiny import config

from medpfl.core.errors import UserError
from medpfl.runs import comparison
from medpfl.runs.comparison import How, all_results, in_full, run_comparison
from medpfl.runs.folder import JOB, RESULTS


@pytest.fixture
def tried(monkeypatch):
    """No network is built: whose would be."""
    found = []

    def of(run_config):
        found.append(run_config.algorithm)
        return SimpleNamespace(given_pretrained=lambda: None)

    monkeypatch.setattr(comparison, "Federation", SimpleNamespace(of=of))
    return found


@pytest.fixture
def made(monkeypatch, tried):
    """No run is made: where each would be and how. What it gives is of its folder, as far as ``gives`` has it."""
    found = SimpleNamespace(runs=[], gives={})

    def noted(config, out, **how):
        name = f"{out.parent.name}/{out.name}"
        found.runs.append((name, how))
        return {"name": name, "failures": []} | found.gives.get(name, {})

    monkeypatch.setattr(comparison, "run_experiment", noted)
    return found


def how(**more):
    return How(lambda title, run_config: nullcontext(lambda progress: None), "inprocess", **more)


def runs_of(*algorithms, seeds=1):
    return [(name, config(name, seed=seed)) for seed in range(seeds) for name in algorithms]


def begun(folder, *runs):
    for run in runs:
        (folder / run).mkdir(parents=True)
        (folder / run / RESULTS).write_text("{}")


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_there_is_gone_on_with_or_made_again(made, tmp_path, overwrite):
    begun(tmp_path, "fedavg/seed-0")
    for table in ("report.html", "comparison.md"):
        (tmp_path / table).touch()
    all_results(runs_of("fedavg", seeds=2), tmp_path, how(overwrite=overwrite), "comparison")
    assert [name for name, _ in made.runs] == ["fedavg/seed-0", "fedavg/seed-1"]
    assert {(of["resume"], of["overwrite"]) for _, of in made.runs} == {(not overwrite, overwrite)}
    assert len(list(tmp_path.glob("*.*"))) == (0 if overwrite else 2)


@pytest.mark.parametrize(
    ("asked", "algorithms", "measured"),
    [
        (None, ("fedavg", "fedreg"), True),
        (None, ("fedavg",), False),
        (False, ("fedreg",), False),
        (True, ("fedavg",), True),
    ],
)
def test_forgetting_is_measured_for_all_or_none(made, tmp_path, asked, algorithms, measured):
    all_results(runs_of(*algorithms), tmp_path, how(forgotten=asked), "comparison")
    assert [of["forgotten"] for _, of in made.runs] == [measured] * len(algorithms)


def test_a_run_without_all_sites_tests_has_no_results_and_says_why_by_the_last_failure(made, tmp_path):
    failures = [{"site": site, "reason": reason} for site, reason in (("a", "first"), ("b", "away"), ("a", "last"))]
    made.gives["fedavg/seed-0"] = {"failures": failures, "unanswered": ["a", "c"]}
    results, unfinished = all_results(runs_of("local", "fedavg"), tmp_path, how(), "comparison")
    assert [of and of["name"] for of in results] == ["local/seed-0", None]
    why = "a has no test: last; c has no test: no answer"
    assert unfinished == [{"run": "fedavg", "seed": 0, "why": why}]
    with pytest.raises(UserError, match="fedavg with seed 0"):
        all_results(runs_of("fedavg"), tmp_path, how(), "comparison")


def test_a_method_is_in_the_tables_with_all_seeds_or_not_at_all(made, tmp_path, monkeypatch, caplog):
    made.gives["fedavg/seed-1"] = {"unanswered": ["a"]}
    for writer in ("write_comparison", "sites_csv", "latex_table", "write_report"):
        monkeypatch.setattr(comparison, writer, lambda *_: "")
    monkeypatch.setattr(comparison, "compare", lambda ended, unfinished: [of["name"] for of in ended])
    begun(tmp_path, "fedavg/seed-0", "fedbn/seed-0")
    assert run_comparison(runs_of("local", "fedavg", seeds=2), tmp_path, how()) == ["local/seed-0", "local/seed-1"]
    assert caplog.messages[-1].endswith("and are not in this table: fedbn/seed-0")


def test_a_choice_that_is_the_methods_own_makes_no_other_run():
    assert in_full(config("fedavg")) == in_full(config("fedavg", personal="nothing"))
    assert in_full(config("fedavg")) != in_full(config("fedavg", personal="top:1"))


def test_each_network_is_built_once_unless_a_run_of_it_is_there(made, tried, tmp_path):
    begun(tmp_path, "fedbn/seed-0")
    runs = runs_of("fedavg", "fedbn", seeds=2)
    all_results(runs, tmp_path, how(), "comparison")
    assert tried == ["fedavg"]
    all_results(runs, tmp_path, how(overwrite=True), "comparison")
    assert tried == ["fedavg", "fedavg", "fedbn"]


def test_a_folder_of_one_of_its_runs_makes_a_folder_the_comparisons(made, tmp_path):
    for table in ("comparison.json", "report.html"):
        (tmp_path / table).touch()
    with pytest.raises(UserError, match="holds a comparison, and none of its runs is one of these"):
        all_results(runs_of("fedavg", "fedbn"), tmp_path, how(), "comparison")
    begun(tmp_path, "fedbn/seed-0")
    all_results(runs_of("fedavg", "fedbn"), tmp_path, how(), "comparison")
    assert len(made.runs) == 2


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (JOB, "holds a run; a comparison has one folder for each"),
        ("sweep.json", "holds a sweep, and a comparison would write over its report.html"),
        ("report.html", "is no comparison's folder, and one would write over its report.html"),
        ("comparison.tex", "is no comparison's folder, and one would write over its comparison.tex"),
    ],
)
def test_a_comparison_begins_in_no_folder_of_others(made, tmp_path, file, words):
    (tmp_path / file).touch()
    with pytest.raises(UserError, match=words):
        all_results(runs_of("fedavg"), tmp_path, how(), "comparison")
    assert not made.runs
