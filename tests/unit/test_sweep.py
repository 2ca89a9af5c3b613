"""A swept setting: what may be swept, which runs are made once, and the figures, curves and files that come of it."""

import csv
import json
import re
from contextlib import nullcontext
from copy import deepcopy
from statistics import fmean, stdev

import pytest
from sweeping import said, swept

import medpfl
from medpfl.core.errors import UserError
from medpfl.report.sweep import Sweeping, sweep_note, sweep_notes, sweep_rows
from medpfl.report.sweep import swept as report_of_sweep
from medpfl.report.sweep_chosen import chosen_values
from medpfl.report.trained_alone import REFERENCE
from medpfl.runs import comparison
from medpfl.runs.comparison import How
from medpfl.runs.sweep import Sweep, run_sweep, write_sweep
from medpfl.tasks import TASKS


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ("lambda=0,0.5,1", ("lambda",), [(0,), (0.5,), (1,)]),
        ("lambda=0.1..0.9..0.2", ("lambda",), [(0.1,), (0.3,), (0.5,), (0.7,), (0.9,)]),
        ("sites=2..5", ("sites",), [(2,), (3,), (4,), (5,)]),
        ("p=0..1..0.5", ("p",), [(0,), (0.5,), (1,)]),
        ("local-epochs+rounds=1+20,4+5", ("local_epochs", "rounds"), [(1, 20), (4, 5)]),
        ("start=noise,holdout", ("start",), [("noise",), ("holdout",)]),
        ("partition=iid,dirichlet:0.1", ("partition",), [("iid",), ("dirichlet:0.1",)]),
        ("partition=file:../a.json,file:../b.json", ("partition",), [("file:../a.json",), ("file:../b.json",)]),
        ("lr=1e-3,1e-2", ("lr",), [(0.001,), (0.01,)]),
    ],
)
def test_what_is_swept(text, names, values):
    assert Sweep.parse(text) == Sweep(names, tuple(values))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lambda", "give NAME=VALUES, e.g. lambda=0,0.5,1"),
        ("lambda=", "at least two different values"),
        ("lambda=0.5", "at least two different values"),
        ("lambda=0.5,0.5", "at least two different values"),
        ("lambda=0.5,", "at least two different values"),
        ("lambda+lambda=1+1,2+2", "give NAME=VALUES"),
        ("a+b=1,2", "'1' gives 1 values for a and b"),
        ("lambda=0.1..0.9", "from the lower end to the higher in steps above 0"),
        ("lambda=0.9..0.1..0.2", "from the lower end to the higher"),
        ("lambda=a..b", r"'a\.\.b' is no FROM\.\.TO\.\.STEP"),
        ("sites=1..1000", "has more than 100 values"),
    ],
)
def test_what_is_no_sweep_says_what_would_be_right(text, words):
    with pytest.raises(UserError, match=words):
        Sweep.parse(text)


def test_several_make_a_grid():
    found = Sweep.grid(["lr=0.1,0.2", "local_epochs+rounds=1+4,2+2"])
    assert found.names == ("lr", "local_epochs", "rounds")
    assert found.values == ((0.1, 1, 4), (0.1, 2, 2), (0.2, 1, 4), (0.2, 2, 2))
    assert Sweep.grid(["lr=0.1,0.2"]) == Sweep.parse("lr=0.1,0.2")
    with pytest.raises(UserError, match="--sweep: lr is swept twice; give all its values in one"):
        Sweep.grid(["lr=0.1,0.2", "mu+lr=1+0.1,1+0.3"])
    with pytest.raises(UserError, match="are 121 points together; 100 is the most"):
        Sweep.grid(["lr=1..11", "mu=1..11"])


def test_only_what_makes_sense_is_swept(tmp_path):
    for name, words in (
        ("seed", "--sweep seed: settings can be swept, and sites"),
        ("data_args", "--sweep data_args"),
        ("foo", "setting 'foo': none of .* has such a setting"),
    ):
        with pytest.raises(UserError, match=words):
            swept(tmp_path, ["fedavg"], f"{name}=1,2")
    with pytest.raises(UserError, match="setting 'lambda': none of local, fedavg has such a setting"):
        swept(tmp_path, ["fedavg"], "lambda=0.1,0.2")
    with pytest.raises(UserError, match="rounds"):
        swept(tmp_path, ["fedavg"], "rounds=0,1")
    assert not list(tmp_path.iterdir())


def test_values_have_places_and_names():
    numbers = Sweeping(("lambda",), ((0,), (0.5,), (1,)))
    assert numbers.places == [0, 0.5, 1] and numbers.title == "lambda" and numbers.label(1) == "lambda=0.5"
    words = Sweeping(("partition",), (("iid",), ("dirichlet:0.1",)))
    assert words.places == [0, 1] and words.folder(1) == "partition=dirichlet_0.1"
    both = Sweeping(("local_epochs", "rounds"), ((5, 80), (10, 40)))
    assert (both.title, both.tick(0), both.places) == ("local_epochs (rounds)", "5 (80)", [5, 10])
    # Two points at one number would lie on each other.
    assert Sweeping(("local_epochs", "warmup"), ((5, 15), (5, 10))).places == [0, 1]


@pytest.fixture(scope="module")
def lambdas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lambdas")
    fields = said(settings={"pretrain": "pooled", "pretrain_epochs": 1})
    return folder, swept(folder, ["fedap"], "lambda=0.2,0.9", seeds=2, fields=fields)


def test_runs_that_no_value_changes_are_made_once(lambdas):
    folder, found = lambdas
    made = sorted(file.parent.relative_to(folder).as_posix() for file in folder.rglob("results.json"))
    at = [f"fedap/lambda={value}/seed-{seed}" for value in (0.2, 0.9) for seed in (0, 1)]
    assert made == sorted([*at, "local/seed-0", "local/seed-1"])
    assert [group["label"] for group in found["groups"]] == ["Local training", "FedAP"]
    local, fedap = ([point["by_seed"] for point in group["points"]] for group in found["groups"])
    assert local[0] == local[1] and fedap[0] != fedap[1]
    ran = json.loads((folder / "fedap/lambda=0.9/seed-1/results.json").read_text())["config"]["settings"]
    assert ran["lambda"] == 0.9


def test_figures_are_the_runs(lambdas):
    folder, found = lambdas
    for k, value in enumerate((0.2, 0.9)):
        point = found["groups"][1]["points"][k]
        runs = [json.loads((folder / f"fedap/lambda={value}/seed-{s}/results.json").read_text()) for s in (0, 1)]
        final = [run["final"]["selected"] for run in runs]
        means = [of["mean"]["accuracy"] for of in final]
        assert point["measures"]["accuracy"] == pytest.approx({"mean": fmean(means), "sd": stdev(means)})
        assert point["sites"]["site-2"] == pytest.approx(fmean(of["sites"]["site-2"]["accuracy"] for of in final))
        assert point["worst"]["mean"] == pytest.approx(
            fmean(min(site["accuracy"] for site in of["sites"].values()) for of in final)
        )
    assert json.loads((folder / "sweep.json").read_text()) == found


def test_validation_data_choose_a_value_for_each_seed(lambdas):
    folder, found = lambdas
    local, fedap = found["groups"]
    runs = {
        (value, seed): json.loads((folder / f"fedap/lambda={value}/seed-{seed}/results.json").read_text())
        for value in (0.2, 0.9)
        for seed in (0, 1)
    }
    validated = {
        key: fmean(site["accuracy"] for site in run["final"]["validation"]["sites"].values())
        for key, run in runs.items()
    }
    best = {seed: max((0.2, 0.9), key=lambda value: validated[value, seed]) for seed in (0, 1)}
    assert fedap["chosen"]["values"] == {str(seed): [0.2, 0.9].index(value) for seed, value in best.items()}
    means = [runs[value, seed]["final"]["selected"]["mean"]["accuracy"] for seed, value in best.items()]
    assert fedap["chosen"]["measure"] == pytest.approx({"mean": fmean(means), "sd": stdev(means)})
    alone = local["points"][0]["measures"]["accuracy"]["mean"]
    assert fedap["chosen"]["to_local"]["mean"] == pytest.approx(fmean(means) - alone)
    assert local["chosen"]["values"] == {"0": None, "1": None} and local["chosen"]["to_local"] is None
    table = (folder / "sweep.md").read_text()
    assert "| Local training | – |" in table and "Chosen: for each seed the value with the best accuracy on" in table
    page = (folder / "report.html").read_text()
    assert "Chosen on validation data" in page and "where validation data choose (lambda=" in page


@pytest.mark.slow
def test_the_gain_where_validation_data_choose_is_over_the_local_training_of_the_values(tmp_path):
    """With further steps at the end it is the one that takes them, too, wherever it stands."""
    found = swept(tmp_path, ["local:finetune_steps=5", "local", "fedavg:finetune_steps=5"], "lr=0.01,0.05")
    longer, plain, fedavg = (group["chosen"] for group in found["groups"])
    assert fedavg["baseline"] == found["groups"][0]["label"] == "Local training (finetune_steps=5)"
    gained = fedavg["measure"]["mean"] - longer["measure"]["mean"]
    assert fedavg["to_local"]["mean"] == pytest.approx(gained)
    assert longer["baseline"] is None and plain["to_local"] is None
    either = swept(tmp_path / "b", ["local:finetune_steps=5", "fedavg"], "lr=0.01,0.05")
    labels = [group["label"] for group in either["groups"]]
    assert either["groups"][labels.index("FedAvg")]["chosen"]["baseline"] == "Local training"


@pytest.mark.slow
def test_of_use_it_is_said_that_its_cases_chose_already(lambdas, tmp_path):
    swept(tmp_path, ["fedbn"], "use=received,best")
    words = "of values of use they speak too well of these"
    assert words in (tmp_path / "sweep.md").read_text() and words not in (lambdas[0] / "sweep.md").read_text()


def test_a_grid_makes_a_run_once_and_says_what_changes_it(tmp_path):
    fields = said(rounds=1, sites="2")
    how = How(lambda title, total: nullcontext(lambda progress: None), "inprocess", threads=1, together=False)
    found = run_sweep(["fedavg", "fedprox"], Sweep.grid(["lr=0.01,0.05", "mu=0.1,1"]), 1, fields, tmp_path, how)
    made = sorted(file.parent.parent.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("results.json"))
    of_lr = [f"{name}/lr={lr}__mu=0.1" for name in ("fedavg", "local") for lr in ("0.01", "0.05")]
    assert made == sorted([*of_lr, *(f"fedprox/lr={lr}__mu={mu}" for lr in (0.01, 0.05) for mu in (0.1, 1))])
    chosen = [group["chosen"]["names"] for group in found["groups"]]
    assert chosen == [["lr"], ["lr"], ["lr", "mu"]]
    rows = {line.split(" | ")[0]: line for line in (tmp_path / "sweep.md").read_text().splitlines() if "lr=" in line}
    assert "mu" not in rows["| FedAvg"] and "mu=" in rows["| FedProx"]


def _run(validated, test):
    tested = {"sites": {"a": {"accuracy": test}}, "mean": {"accuracy": test}}
    return {"final": {"validation": {"mean": {"accuracy": validated}}, "selected": tested}}


def test_of_values_that_validate_alike_the_first_is_chosen_and_none_where_one_tells_nothing():
    measure = TASKS["classification"].measures[0]
    low, high, again = _run(0.5, 0.9), _run(0.6, 0.1), _run(0.6, 0.8)
    assert chosen_values([[low, high], [high, low], [again, again]], measure) == [1, 0]
    assert chosen_values([[], [low], [high]], measure) == [2]  # at the first a run ended early
    assert chosen_values([[low], [_run(None, 0.9)]], measure) is None
    assert chosen_values([[low], [{"final": {"selected": low["final"]["selected"]}}]], measure) is None  # of before
    assert chosen_values([[], []], measure) is None


def test_the_csv_has_every_site(lambdas):
    folder, found = lambdas
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert len(rows) == 2 * 2 * 2 * 2  # methods, values, seeds, sites
    chosen = [r for r in rows if (r["algorithm"], r["lambda"], r["site"]) == ("fedap", "0.9", "site-2")]
    assert [row["seed"] for row in chosen] == ["0", "1"]
    mean = fmean(float(row["accuracy"]) for row in chosen)
    assert mean == pytest.approx(found["groups"][1]["points"][1]["sites"]["site-2"])


def test_the_page_draws_means_with_spread_and_sites_faintly(lambdas):
    folder, found = lambdas
    page = (folder / "report.html").read_text()
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) == 3  # all methods, then each one's sites
    everyone, fedap = charts[0], charts[2]
    assert everyone.count('class="curve') == 2 + 2 * 2  # curves, and whiskers at two values
    assert "faint" not in everyone and fedap.count('class="faint c1"') == 2
    assert ">0.2</text>" in fedap and ">0.9</text>" in fedap and ">lambda</text>" in fedap
    # The curve begins at the first value's mean: where its dot is.
    begun = re.search(r'class="curve c1" d="M([\d.]+) ([\d.]+)L', fedap[fedap.rindex('class="curve c1"') :])
    assert f'cx="{begun[1]}" cy="{begun[2]}"' in fedap
    mean = found["groups"][1]["points"][0]["measures"]["accuracy"]["mean"]
    assert f"FedAP, 0.2: {mean:.3f}" in fedap and f"FedAP: {mean:.3f} at 0.2" in fedap
    assert "Whiskers are a standard deviation over seeds" in page and "A faint line is a site" in page


def test_the_note_says_where_differences_are_to_another_baseline(lambdas):
    found = deepcopy(lambdas[1])
    assert REFERENCE not in sweep_note(found)
    found["groups"][1]["points"][1]["to_local"]["baseline"] = REFERENCE
    assert f"Differences to local are to {REFERENCE} at lambda=0.9, where local training has no" in sweep_note(found)


def test_the_folder_of_another_sweep_is_called_that(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    (tmp_path / "report.html").touch()
    with pytest.raises(UserError, match=r"holds a sweep, and none of its runs is one of these; choose another --out"):
        swept(tmp_path, ["fedavg"], "rounds=1,2")
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(UserError, match="is no sweep's folder, and one would write over its report"):
        swept(tmp_path, ["fedavg"], "rounds=1,2")


def test_a_sweep_goes_on_and_reads_what_is_there(lambdas, monkeypatch):
    folder, found = lambdas
    begun = []
    fields = said(settings={"pretrain": "pooled", "pretrain_epochs": 1})
    monkeypatch.setattr(
        comparison, "run_experiment",
        lambda config, out, **how: begun.append(how["resume"]) or json.loads((out / "results.json").read_text()),
    )  # fmt: skip
    again = swept(folder, ["fedap"], "lambda=0.2,0.9", seeds=2, fields=fields)
    assert again == found and begun == [True] * 6


@pytest.mark.slow
def test_other_numbers_of_sites_are_other_data(tmp_path, medpfl):
    words = ["fedavg", "--sweep", "sites=2,3", "--seeds", 1, "--rounds", 1, "--train-fraction", 0.05, "--no-new-test"]
    done = medpfl("compare", *words, "--partition", "iid", "--out", tmp_path / "out")
    assert "Sites have other data at each value" in " ".join(done.stdout.split())
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [len(of["sites"]) for of in found["data"]] == [2, 3]
    assert [group["chosen"] for group in found["groups"]] == [None, None] and "Chosen" not in done.stdout
    assert [len(point["sites"]) for point in found["groups"][1]["points"]] == [2, 3]
    page = (tmp_path / "out" / "report.html").read_text()
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert charts[2].count('class="pale f1"') == 5 and "faint" not in charts[2]  # dots: a name is two sites
    assert (tmp_path / "out" / "local" / "sites=3" / "seed-0" / "results.json").is_file()


@pytest.mark.slow
def test_settings_change_together(tmp_path):
    found = swept(tmp_path, ["fedavg"], "local_epochs+rounds=1+2,2+1")
    runs = [json.loads((tmp_path / f"fedavg/{at}/seed-0/results.json").read_text()) for at in (
        "local_epochs=1__rounds=2", "local_epochs=2__rounds=1",
    )]  # fmt: skip
    assert [(run["config"]["local_epochs"], run["config"]["rounds"]) for run in runs] == [(1, 2), (2, 1)]
    assert ">1 (2)</text>" in (tmp_path / "report.html").read_text()
    assert [point["rounds"] for point in found["groups"][1]["points"]] == [2, 1]


@pytest.mark.parametrize("uneven", [0, 1])
def test_where_one_values_classes_are_uneven_all_values_are_of_the_same_measure(lambdas, uneven):
    """Each value's comparison by itself would choose what it leads with, and a table has one head."""
    folder, _ = lambdas

    def run(name, at):
        found = json.loads((folder / name / "seed-0" / "results.json").read_text())
        if at == uneven:
            found["selection"]["lead"] = "balanced_accuracy"
        return found

    at_each = [{0: [run("local", k)], 1: [run(f"fedap/lambda={value}", k)]} for k, value in enumerate((0.2, 0.9))]
    of = Sweeping(("lambda",), ((0.2,), (0.9,)))
    found = report_of_sweep(of, [("Local training", "local"), ("FedAP", "fedap")], at_each)
    assert found["measures"][0]["name"] == "balanced_accuracy"
    for k, point in enumerate(found["groups"][1]["points"]):
        assert point["by_seed"]["0"] == at_each[k][1][0]["final"]["selected"]["mean"]["balanced_accuracy"]


def test_from_python(tmp_path):
    fields = {"sites": 2, "rounds": 1, "train_fraction": 0.05, "fractions": (0.2, 0.05, 0.05), "quiet": True}
    found = medpfl.compare(["fedprox"], seeds=1, sweep="mu=0.1,1", out=tmp_path / "out", new_test=False, **fields)
    assert found.results == json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert found.report() == tmp_path / "out" / "report.html" and "FedProx" in repr(found)
    assert "FedProx" in repr(found.table()) and "<td" in found._repr_html_()
    assert (tmp_path / "out" / "local" / "seed-0").is_dir() and (tmp_path / "out" / "fedprox" / "mu=0.1").is_dir()


def test_twins_are_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UserError, match=r"are the same run at local_epochs=1; give each once"):
        swept(tmp_path, ["fedap", "fedap:lambda=0.5"], "local_epochs=1,2")
    assert not list(tmp_path.rglob("results.json"))


def test_where_a_method_has_its_own_rival_the_gain_over_it_has_a_column(lambdas):
    found = deepcopy(lambdas[1])
    heads, _ = sweep_rows(found)
    assert "To own rival (points)" not in heads and "Own rival" not in sweep_note(found)
    found["groups"][1]["points"][0]["to_own_rival"] = {"mean": 0.012, "sd": 0.003, "verdicts": {}}
    heads, rows = sweep_rows(found)
    assert heads[-1] == "To own rival (points)"
    assert [row[-1] for row in rows] == ["–", "–", "+1.2 ± 0.3", "–"]
    assert "Own rival: the model that each site trains alone beside the run" in sweep_note(found)
    assert "Trained by other settings" not in sweep_note(found)
    for point in found["groups"][1]["points"]:
        point["trained_otherwise"] = {"momentum": 0.9}
    assert "they are judged by: FedAP with momentum=0.9. Part of the differences" in sweep_note(found)


def test_notes_of_runs_are_there_with_the_values_that_have_them(lambdas, tmp_path):
    found = deepcopy(lambdas[1])
    pooled, weak = sweep_notes(found)
    assert pooled.startswith("FedAP: The model under which") and weak.startswith("FedAP, in seed 0 and alike in 1: ")
    few = {"seed": None, "alike": [], "text": "site-2 has 3 test cases."}
    lost = {"seed": 1, "alike": [], "text": "site-1 was absent."}
    for group in found["groups"]:
        for point in group["points"]:
            point["notes"] = [few]
    found["groups"][1]["points"][0]["notes"] = [few, lost]
    lines = [
        "Local training, FedAP: site-2 has 3 test cases.",
        "FedAP at lambda=0.2, in seed 1: site-1 was absent.",
    ]
    assert sweep_notes(found) == lines
    write_sweep(found, tmp_path)
    for name in ("sweep.md", "report.html"):
        assert all(line in (tmp_path / name).read_text() for line in lines)
    found["groups"][1]["points"][1].pop("notes")  # as a sweep before notes were kept
    assert sweep_notes(found)[0] == "Local training, FedAP at lambda=0.2: site-2 has 3 test cases."


def test_local_training_of_two_networks_cannot_be_told_apart_over_a_sweep_of_networks(tmp_path):
    """It would be there at some values alone, and every method after it under the name of the one before."""
    fields = {"sites": 2, "rounds": 1, "out": tmp_path / "none", "sweep": "model=lenet5,vit-tiny"}
    with pytest.raises(UserError, match="a sweep of model with a variant that names one: local training of both"):
        medpfl.compare(["fedavg:model=vit-tiny", "fedprox"], seeds=1, **fields)
    assert not (tmp_path / "none").exists()


def test_a_sweep_of_data_from_a_function_has_its_sites(tmp_path):
    own = {"data": "tiny:site_data", "model": "tiny:Net", "settings": {"batch_size": 4}, "rounds": 1}
    found = medpfl.compare(["fedavg"], seeds=1, out=tmp_path, sweep="sites=2,3", **own).results
    assert [len(point["runs"]["0"]) for point in found["groups"][0]["points"]] == [2, 3]
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) > 5


@pytest.mark.parametrize("sweep", [["lr", 1], [], {"lr": [0.1]}])
def test_a_sweep_is_text(sweep):
    with pytest.raises(UserError, match="give text as the command line takes it"):
        medpfl.compare(["fedavg"], sweep=sweep)
    with pytest.raises(UserError, match="algorithms are text"):
        medpfl.compare([1])
