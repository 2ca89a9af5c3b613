"""medpfl.run and medpfl.compare, as a notebook or another program calls them."""

import doctest
import json
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import numpy as np
import pytest
import torch
from tiny import Net, images, site_data

import medpfl
from medpfl.algorithms.fedavg import FEDAVG
from medpfl.core.statefile import read_state
from medpfl.runs import api
from medpfl.runs.seeds import seeds_of
from medpfl.runs.shown import Comparison

OWN = {"data": site_data, "model": Net, "rounds": 2, "sites": 2, "quiet": True, "device": "cpu"}


def test_the_examples_of_the_docstrings(monkeypatch):
    session = ModuleType("__main__")  # where a notebook has what it defines
    monkeypatch.setitem(sys.modules, "__main__", session)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(api, globs=session.__dict__):
        test.globs = session.__dict__
        runner.run(test, clear_globs=False)
    found = runner.summarize()
    assert found.attempted >= 12
    assert found.failed == 0


def test_importing_the_package_imports_nothing_else():
    code = "import sys, medpfl; print([m for m in ('torch', 'nvflare', 'numpy', 'medpfl.runs') if m in sys.modules])"
    code += "; print(medpfl.__version__, sorted(dir(medpfl))[:3]); medpfl.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "[]"
    assert done.stdout.splitlines()[1].startswith(f"{version('medpfl')} ['Comparison', 'ImageTensors', 'Run']")
    assert "module 'medpfl' has no attribute 'nothing'" in done.stderr
    assert all(getattr(medpfl, name) for name in dir(medpfl))


def test_a_run_is_what_the_command_would_write():
    run = medpfl.run("fedbn", **OWN, settings={"lr": 0.1}, threads=1)
    assert run.results == json.loads((run.folder / "results.json").read_text())
    assert run.results["config"]["data"] == "tiny:site_data"
    assert run.results["config"]["settings"]["lr"] == 0.1
    assert run.report().read_text().startswith("<!doctype html>")
    assert repr(run).startswith("FedBN: 0.")


def test_progress_is_a_bar_on_a_terminal_and_lines_in_a_notebook(monkeypatch, capsys):
    asked = OWN | {"quiet": False, "alone": "no"}
    medpfl.run("fedavg", **asked)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    medpfl.run("fedavg", **asked)
    assert "fedavg: starting" in capsys.readouterr().out
    medpfl.run("fedavg", **asked | {"quiet": True})
    assert capsys.readouterr().out == ""

    said = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: said.append(text.strip()))
    medpfl.run("fedavg", **asked)
    assert said[0] == "fedavg: preparing sites" and said[-1] == "fedavg: testing"


def test_the_models_are_those_that_the_sites_use():
    run = medpfl.run("ditto", **OWN | {"sites": ["north-1", "south-2"]})
    assert list(run.models) == ["north-1", "south-2"]
    model = run.models["south-2"]
    kept, _ = read_state(run.folder / "models" / "south-2.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert run.models["south-2"] is model
    data = site_data("south-2", 0)
    right = (model(data.images["test"].float() / 127.5 - 1).argmax(1) == data.labels["test"]).float().mean()
    tested = run.results["final"]["selected"]["sites"]["south-2"]
    assert right.item() == pytest.approx(tested["accuracy"])
    probabilities, labels = run.predictions("south-2")
    assert labels.tolist() == data.labels["test"].tolist() and probabilities.shape == (len(labels), 3)
    assert (probabilities.argmax(1) == labels).mean() == pytest.approx(tested["accuracy"])
    assert len(run.predictions("south-2", "train")[1]) == len(data.labels["train"])
    with pytest.raises(medpfl.UserError, match="no site 'east': it has north-1, south-2"):
        run.predictions("east")
    with pytest.raises(medpfl.UserError, match="no site 2: it has"):
        run.predictions(2)
    with pytest.raises(medpfl.UserError, match="part='val': use train, validation, test"):
        run.predictions("south-2", "val")
    with pytest.raises(KeyError, match="no model of 'east': there are north-1, south-2"):
        run.models["east"]
    none = medpfl.run("fedavg", **OWN | {"data_args": {"validation": 0}})
    with pytest.raises(medpfl.UserError, match="site-1 has no validation samples"):
        none.predictions("site-1", "validation")
    assert "east" not in run.models


def test_a_folder_without_a_name_is_there_as_long_as_what_needs_it(tmp_path):
    run = medpfl.run("fedavg", **OWN)
    folder, models = run.folder, run.models
    saved = run.save(tmp_path / "kept")
    del run
    assert models["site-1"]
    del models
    assert not folder.exists()
    assert {"results.json", "report.html", "models"} <= {file.name for file in saved.iterdir()}
    with pytest.raises(medpfl.UserError, match="something is there"):
        medpfl.run("fedavg", **OWN).save(saved)


def test_a_run_that_fails_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(medpfl.UserError, match=r"data of site-1: RuntimeError: no scanner"):
        medpfl.run("fedavg", **OWN | {"data": broken})
    assert list(tmp_path.iterdir()) == []


def broken(site, seed):
    raise RuntimeError("no scanner")


def test_a_named_folder_is_gone_on_with_only_if_asked(tmp_path):
    first = medpfl.run("fedavg", **OWN, out=tmp_path / "run")
    with pytest.raises(medpfl.UserError, match="already holds a run"):
        medpfl.run("fedavg", **OWN, out=tmp_path / "run")
    again = medpfl.run("fedavg", **OWN, out=str(tmp_path / "run"), resume=True)
    assert again.results == first.results
    with pytest.raises(medpfl.UserError):
        medpfl.run("fedavg", **OWN | {"rounds": 3}, out=tmp_path / "run", resume=True)
    assert len(medpfl.run("fedavg", **OWN | {"rounds": 3}, out=tmp_path / "run", overwrite=True).results["rounds"]) == 3


def test_tables_are_text_and_html(tmp_path):
    found = medpfl.compare(["fedavg", "fedprox:mu=0.5"], seeds=2, **OWN, out=tmp_path)
    text, html = repr(found.table()), found.table()._repr_html_()
    for name in ("Local training", "FedAvg", "FedProx"):
        assert name in text
        assert f'<th scope="row">{name}' in html
    assert max(map(len, text.splitlines())) <= 100
    assert found.results["seeds"] == [0, 1]
    assert found.results == json.loads((tmp_path / "comparison.json").read_text())
    assert found.report() == tmp_path / "report.html"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["fedavg", "fedprox_mu=0.5", "local"]
    run = found.run("fedprox:mu=0.5", seed=1)
    assert run.results == json.loads((tmp_path / "fedprox_mu=0.5" / "seed-1" / "results.json").read_text())
    assert found.run("fedprox_mu=0.5").results["config"]["seed"] == 0
    assert found.run(FEDAVG).folder == tmp_path / "fedavg" / "seed-0"
    of_run, own = run.predictions("site-2"), medpfl.load(run.folder, data=site_data, model=Net).predictions("site-2")
    assert [a.tolist() for a in of_run] == [a.tolist() for a in own]
    with pytest.raises(medpfl.UserError, match=r"no run of 'fedprox:mu=5'.*did you mean fedprox_mu=0\.5.*it has local"):
        found.run("fedprox:mu=5")
    with pytest.raises(medpfl.UserError, match="no run of 'fedavg' with seed 2: it has 0, 1"):
        found.run("fedavg", seed=2)
    one = medpfl.run("fedavg", **OWN | {"sites": 3})
    assert "site-3" in repr(one.table())
    assert one._repr_html_().count("<tr>") == 1 + 3 + 2


def inner():
    def local(site, seed):
        return images()

    return local


def test_held_out_centres_are_a_list_of_names_as_sites_are():
    run = medpfl.run("fedavg", **OWN, held_out=["y-1", "z-2"])
    assert set(run.results["new"]["held_out"]) == {"y-1", "z-2"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"rouds": 3}, "rouds=3: no option; did you mean rounds?"),
        ({"mu": 0.1}, r"a setting of training or of the method goes into settings=\{'mu': 0.1\}"),
        ({"preset": "x.yml"}, "preset='x.yml': the command line's alone; here give its options as arguments"),
        ({"join": "runs/x"}, "join='runs/x': the command line's alone; here `medpfl run --join FOLDER` takes"),
        ({"settings": {"lambda": 0.1}}, "setting 'lambda' has no meaning for fedavg"),
        ({"env": "prod"}, "env='prod': use inprocess, sim or poc"),
        ({"threads": "2"}, "threads='2': give a whole number"),
        ({"out": 3}, "out=3: give a folder's path"),
        ({"data": "nowhere.npz"}, "nowhere.npz"),
        ({"data": lambda site, seed: images()}, "sites call it by its name, and test_api has none such at its top"),
        ({"data": inner()}, "data=inner.<locals>.local: sites call it by its name"),
        ({"model": Net()}, r"model=Net\(...\): give its class"),
        ({"model": "lenet6"}, "unknown model 'lenet6': did you mean lenet5"),
        ({"algorithm": ["fedavg", "fedbn"]}, r"give one algorithm's name; medpfl.compare takes several"),
        ({"settings": 3}, "settings=3: give a dict of names and values"),
        ({"rounds": -1}, "rounds: Input should be greater than or equal to 1, not -1"),
        ({"resume": True, "overwrite": True}, "a run goes on or begins anew; give one of them"),
    ],
)
def test_mistakes_are_named(call, said):
    with pytest.raises(medpfl.UserError, match=said):
        medpfl.run(**{"algorithm": "fedavg"} | call)


@pytest.mark.parametrize(
    ("algorithms", "call", "said"),
    [
        ("fedavg", {}, r"give a list of algorithms, e.g. \['fedavg'\]"),
        ([], {}, r"compare\(\[\]\): give a method at least"),
        (["fedavg"], {"seeds": [0, True]}, r"seeds \[0, True\]: give how many"),
        (["fedavg"], {"seeds": [1, 1]}, r"seeds \[1, 1\]: give each once"),
        (["fedavg"], {"seeds": 0}, "seeds 0: give how many"),
        (["fedavg"], {"seeds": -1}, "seeds -1: give how many"),
        (["fedavg"], {"seeds": "3..1"}, "seeds '3..1': give how many"),
        (["fedavg"], {"seeds": "-2,1"}, "seeds '-2,1': -2 is below 0"),
        (["fedavg"], {"seeds": 10**12}, "seeds 1000000000000: more than 10,000"),
        (["fedavg"], {"seeds": 10**20}, "seeds 1(0*): more than 10,000"),
        (["fedavg"], {"seeds": "0..10000"}, "seeds '0..10000': more than 10,000"),
        (["fedavg"], {"seeds": "9" * 5000}, "seeds '9+': give how many"),
        (["fedavg"], {"seeds": b"12"}, "seeds b'12': give how many"),
        (["fedavg"], {"seeds": "a"}, "seeds 'a': give how many"),
        (["fedavg"], {"seeds": np.array([0.5])}, r"seeds array\(\[0.5\]\): give how many"),
        (["fedavg"], {"seed": 3}, r"seeds=\[...\] says which"),
        (["fedap"], {"mixing": "uniform"}, "e.g. fedap:mixing=..."),
        (["fedavg"], {"settings": {"nu": 1}}, "none of local, fedavg has such a setting"),
    ],
)
def test_mistakes_of_comparisons_are_named(algorithms, call, said):
    with pytest.raises(medpfl.UserError, match=said):
        medpfl.compare(algorithms, **call)


def test_a_copy_goes_where_the_run_of_such_a_name_would(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    assert Comparison({}, tmp_path / "run", None).save("~/kept") == tmp_path / "kept"
    assert (tmp_path / "kept" / "results.json").exists()


@pytest.mark.parametrize(
    ("given", "seeds"),
    [(np.arange(3, 5), (3, 4)), ([np.int64(7)], (7,)), (np.int32(2), (0, 1)), (np.array(2), (0, 1))],
)
def test_seeds_may_be_numpys(given, seeds):
    found = seeds_of(given)
    assert found == seeds and {type(seed) for seed in found} == {int}


def test_what_a_notebook_defines_is_for_its_own_process(monkeypatch):
    session = ModuleType("__main__")
    exec("def hospital(site, seed):\n    from tiny import images\n    return images()\n", session.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", session)
    run = medpfl.run("fedavg", **OWN | {"data": session.hospital})
    assert run.results["config"]["data"] == "__main__:hospital"
    with pytest.raises(medpfl.UserError, match="this session's own, and the sites of FLARE are processes"):
        medpfl.run("fedavg", **OWN | {"data": session.hospital}, env="sim")


def test_the_version_is_said_without_torch():
    code = "import sys\nfrom medpfl.cli.main import app\nsys.argv = ['medpfl', '--version']\n"
    code += "try:\n    app()\nfinally:\n    assert not {'torch', 'nvflare', 'monai'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parts = ", ".join(f"{name} {version(name)}" for name in ("nvflare", "torch", "monai"))
    assert done.stdout == f"medpfl {medpfl.__version__} ({parts})\n"


@pytest.mark.slow
def test_masks_are_compared_without_a_word_of_task_or_network(tmp_path):
    fields = {"data": "sarcoma-sample", "rounds": 1, "train_fraction": 0.1, "model_args": {"channels": [4, 8]}}
    found = medpfl.compare(["fedavg"], seeds=1, out=tmp_path / "out", **fields)
    assert {group["algorithm"] for group in found.results["groups"]} == {"local", "fedavg"}
    assert found.results["measures"][0]["name"] == "dice"
