"""A method of a file of one's own, without a package: by the command line's words, as an object, and where not."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import medpfl
from medpfl import algorithms as of_algorithms
from medpfl.algorithms import algorithm, algorithms, mechanisms, origin, taken_up
from medpfl.algorithms.fedprox import FEDPROX
from medpfl.cli.refusals import require_installed
from medpfl.config.named_code import fingerprints, named_code
from medpfl.config.run import RunConfig, make_config
from medpfl.core import one_file
from medpfl.core.errors import UserError
from medpfl.data.sites import open_source
from medpfl.models import build_model
from medpfl.runs.asked import as_meant, config_of
from medpfl.runs.comparison import Variant
from medpfl.runs.sweep import Sweep

L2_SP = Path(__file__).parents[3] / "examples" / "own_package" / "own_package" / "l2_sp.py"
TINY = {"sites": 2, "rounds": 1, "train_fraction": 0.05, "fractions": (0.2, 0.05, 0.05), "device": "cpu"}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """What a test takes up is gone after it."""
    monkeypatch.setenv(one_file.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]
    os.environ[one_file.VARIABLE] = ""
    of_algorithms._remember([])


def written(folder, name="mine", **changed):
    """The example's file with other names, so that both may be known."""
    text = L2_SP.read_text()
    for old, new in {'name="l2-sp"': f'name="{name}"', '"starting-point"': f'"{name}-start"', "anchor": "hold"}.items():
        text = text.replace(old, new)
    for old, new in changed.items():
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def test_a_file_holds_a_method(tmp_path):
    file = written(tmp_path)
    assert taken_up(f"{file}:L2_SP") == "mine"
    assert taken_up(f"{file}:L2_SP:hold=0.5,personal=batch-norm") == "mine:hold=0.5,personal=batch-norm"
    assert algorithm("mine").settings == {"hold": 0.1} and "mine-start" in mechanisms()
    assert origin("mine") == "mine" and one_file.remembered() == ["mine:L2_SP"]
    assert sys.path[-1] == str(tmp_path)  # nothing beside it stands in for Python's
    config = make_config(algorithm="fedbn", settings={"hold": 0.5})  # other methods can have its mechanism
    assert [part.name for part in config.mechanisms if part.name == "mine-start"]
    config = make_config(algorithm="mine")
    assert ("method", "mine:mine") in named_code(config)
    assert list(fingerprints(config)) == ["mine"]


def test_a_module_that_can_be_imported_holds_one_too(tmp_path, monkeypatch):
    written(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert Variant.parse("mine:L2_SP:hold=1") == Variant.parse("mine:hold=1")
    assert Variant.parse("mine:hold=1").folder == "mine_hold=1"


@pytest.mark.slow
def test_a_run_of_it_and_a_comparison(tmp_path):
    file = written(tmp_path)
    run = medpfl.run(f"{file}:L2_SP", out=tmp_path / "run", settings={"hold": 0.5}, quiet=True, **TINY)
    assert (run.results["algorithm"], run.results["title"]) == ("mine", "L2-SP")
    assert "0.5/2 |psi - psi_first|^2" in run.results["choices"]["objective"]
    assert list(run.results["environment"]["code"]) == ["mine"]
    found = medpfl.compare(
        [f"{file}:L2_SP", f"{file}:L2_SP:hold=0"], seeds=1, out=tmp_path / "compare", quiet=True, **TINY
    ).results
    assert [group["label"] for group in found["groups"]] == ["Local training", "L2-SP", "L2-SP (hold=0)"]
    assert (tmp_path / "compare" / "mine_hold=0" / "seed-0").is_dir()


def test_a_finished_run_says_that_its_file_has_changed_since(tmp_path, monkeypatch):
    monkeypatch.setattr("medpfl.config.named_code._DIGESTS", digests := {})
    file, fields = written(tmp_path), TINY | {"out": tmp_path / "run", "quiet": True}
    first = medpfl.run(f"{file}:L2_SP", **fields).results
    file.write_text(file.read_text() + "\n")
    digests.clear()  # as in another process
    again = medpfl.run(f"{file}:L2_SP", resume=True, **fields).results
    assert again["environment"]["code"] == first["environment"]["code"] and again["final"] == first["final"]
    words = "mine has changed since this run was made; --overwrite makes it anew"
    assert words in again["notes"] and words not in first["notes"]


def test_an_object_is_found_where_a_module_has_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(written(tmp_path).parent)
    import mine

    run = medpfl.run(mine.L2_SP, out=tmp_path / "run", quiet=True, **TINY)
    assert run.results["algorithm"] == "mine"
    # A notebook's cell that is run again makes another one of the same name.
    mine.L2_SP = replace(mine.L2_SP, settings={"hold": 0.7})
    run = medpfl.run(mine.L2_SP, out=tmp_path / "again", quiet=True, **TINY)
    assert run.results["config"]["settings"]["hold"] == 0.7
    assert medpfl.run(FEDPROX, out=tmp_path / "own", quiet=True, **TINY).results["algorithm"] == "fedprox"
    # A session that imported it is no hindrance to other processes.
    monkeypatch.setattr(sys.modules["__main__"], "MINE", mine.L2_SP, raising=False)
    assert one_file.where(mine.L2_SP) == "mine:L2_SP"
    with pytest.raises(UserError, match="no module has this one at its top level"):
        medpfl.run(replace(mine.L2_SP, name="other"), **TINY)
    monkeypatch.setattr(sys.modules["__main__"], "IN_A_CELL", replace(mine.L2_SP, name="cell"), raising=False)
    with pytest.raises(UserError, match="this session's own, and the sites of FLARE are processes of their own"):
        medpfl.run(sys.modules["__main__"].IN_A_CELL, env="sim", **TINY)


def test_a_sessions_own_method_is_no_hindrance_to_other_processes(monkeypatch, tmp_path):
    """They could not import it; nor is one that the session has thrown away to the session."""
    monkeypatch.syspath_prepend(written(tmp_path).parent)
    import mine

    session = sys.modules["__main__"]
    own = replace(mine.L2_SP, name="mine")
    monkeypatch.setattr(session, "OWN", own, raising=False)
    monkeypatch.setattr("builtins._", own, raising=False)  # what a prompt has shown last
    assert one_file.where(own).endswith("main__:OWN")
    medpfl.run(own, out=tmp_path / "run", quiet=True, **TINY)
    assert len(one_file.remembered()) == 1 and os.environ[one_file.VARIABLE] == ""
    monkeypatch.delattr(session, "OWN")
    assert one_file.remembered() == []
    medpfl.run("fedavg", out=tmp_path / "other", quiet=True, **TINY)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{file}:NOPE", "module 'mine' has no 'NOPE'"),
        ("{folder}/none.py:L2_SP", "there is no file .*none.py"),
        ("fedaap:FOO", "no module 'fedaap' can be imported .did you mean fedap.."),
        ("{file}:StartingPoint", "must be a medpfl Algorithm, not type"),
        ("{folder}/mine_wrong.py:X", "cannot be loaded: AttributeError: module 'math' has no attribute 'tau2'"),
        ("{folder}/mine_torn.py:X", "cannot be loaded: SyntaxError: .*mend that file"),
        ("{folder}/mine_taken.py:L2_SP", "there is a method 'fedavg' already; give it another name"),
        ("{folder}/mine_setting.py:L2_SP", "both have a setting 'mu': give the other package's another name"),
        ("fedap:lambda", "algorithm 'fedap:lambda': settings of one run are given by --set, here lambda"),
        ("{file}:L2_SP:hold=0.5", "settings of one run are given by --set, here hold=0.5"),
        ("{folder}/mine_ends.py:X", "cannot be loaded: SystemExit: 0; mend that file"),
        ("{folder}/mine_array.py:X", "must be a medpfl Algorithm, not ndarray"),
        ("{folder}/statistics.py:L2_SP", "there is another module 'statistics' here, .*give the file another name"),
        ("{folder}/fed-mine.py:L2_SP", "fed-mine.py: a module is called in letters, digits and _"),
    ],
)
def test_what_is_no_method_is_said_and_forgotten(tmp_path, given, words):
    file = written(tmp_path)
    (tmp_path / "mine_torn.py").write_text("def (")
    (tmp_path / "mine_ends.py").write_text("import sys\nsys.exit(0)")
    (tmp_path / "mine_array.py").write_text("import numpy\nX = numpy.zeros(3)")
    (tmp_path / "mine_wrong.py").write_text("import math\nX = math.tau2")
    written(tmp_path, "mine_taken", **{'name="mine_taken"': 'name="fedavg"'})
    written(tmp_path, "mine_setting", hold="mu")
    written(tmp_path, "statistics")
    written(tmp_path, "fed-mine")
    with pytest.raises(UserError, match=words):
        algorithm(taken_up(given.format(file=file, folder=tmp_path)))
    if "hold" not in given:  # where that is a method's setting it is known
        assert one_file.remembered() == [] and not {"mine", "mine_setting"} & set(algorithms())
    assert taken_up(f"{file}:L2_SP") == "mine"


@pytest.mark.parametrize(("place", "mode"), [("", "drwxrwxrwx"), ("mine.py", "-rwxrwxrwx"), ("__pycache__", "drwx.*x")])
def test_what_everybody_can_change_is_refused(tmp_path, place, mode):
    """What others put there, a module or Python's cache of the file itself, would run."""
    file = written(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / place).chmod(0o777)
    with pytest.raises(UserError, match=rf"everybody can change .*\({mode}\).*put the file into a folder of your own"):
        taken_up(f"{file}:L2_SP")
    assert "mine" not in sys.modules and str(tmp_path) not in sys.path


NETWORK = "import tiny\n\nclass Mine(tiny.Net):\n    pass\n\ndef read(*given):\n    return tiny.site_data(*given)\n"


def fields_of(**said):
    known = [name for name in RunConfig.model_fields if name not in ("algorithm", "names")]
    return as_meant(dict.fromkeys(known) | {"data_args": {}, "model_args": {}, "settings": {}} | said)


def test_a_file_holds_a_network_and_data(tmp_path, monkeypatch):
    monkeypatch.setattr(one_file, "_of_files", set())
    file = tmp_path / "mine_net.py"
    file.write_text(NETWORK)
    config = config_of("fedavg", fields_of(model=f"{file}:Mine", data=f"{file}:read"))
    assert (config.model, config.data, sys.path[-1]) == ("mine_net:Mine", "mine_net:read", str(tmp_path))
    assert type(build_model(config.model)).__name__ == "Mine"  # its module is permitted
    variant = Variant.parse(f"fedavg:lr=0.1,model={file}:Mine,use=received")
    assert variant.choices == {"model": "mine_net:Mine", "use": "received"}
    # Folders and pages have the texts: the file's place is in none.
    assert variant.text == "fedavg:lr=0.1,model=mine_net:Mine,use=received"
    assert Sweep.parse(f"model={file}:Mine,lenet5").values == (("mine_net:Mine",), ("lenet5",))
    assert Sweep.parse(f"lr+model=1+{file}:Mine,2+lenet5").values == ((1, "mine_net:Mine"), (2, "lenet5"))
    with pytest.raises(UserError, match=r"Mine is of the file mine_net, which is no installed package|read is of the"):
        require_installed(config)
    for said, words in ({"model": "Min"}, "has no 'Min' .did you mean Mine.."), ({"data": "reed"}, "data .*mean read"):
        with pytest.raises(UserError, match=words):
            fields_of(**{what: f"{file}:{name}" for what, name in said.items()})
    for what, kind in (("model", "a network's class"), ("data", "a function that gives a site's data")):
        with pytest.raises(UserError, match=rf"say what of the file, .*mine_net\.py:NAME, {kind}"):
            fields_of(**{what: str(file)})


@pytest.mark.parametrize("command", [("run", "--env", "prod"), ("export", "fedavg", "--job", "job")])
def test_no_site_far_away_joins_with_data_of_a_file(tmp_path, medpfl, command):
    (tmp_path / "mine_net.py").write_text(NETWORK)
    said = ("--join", tmp_path, "--sites", "new", "--data", "mine_net.py:read")
    done = medpfl(*command, *said, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "read is of the file mine_net, which is no installed package" in done.stderr


@pytest.mark.parametrize("data", ["mine_net:read", "tiny:site_data"])
def test_a_module_that_is_not_there_but_as_a_file_here_is_named_so(tmp_path, monkeypatch, data):
    (tmp_path / "mine_net.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    config = config_of("fedavg", fields_of(model="mine_net:Mine", data=data))
    with pytest.raises(
        UserError, match=r"No module named 'mine_net'; of the file that lies here give mine_net\.py:Mine"
    ):
        build_model(config.model)
    if data != "tiny:site_data":
        with pytest.raises(UserError, match=r"can be imported; of the file that lies here give mine_net\.py:read"):
            open_source(config).site("site-1", torch.device("cpu"))


def test_a_module_that_imports_what_is_not_there_is_not_taken_for_absent(tmp_path, monkeypatch):
    (tmp_path / "mine_net.py").write_text("import mine_none")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of("fedavg", fields_of(model="mine_net:Mine", data="mine_net:read"))
    with pytest.raises(UserError, match=r"cannot import 'mine_net': No module named 'mine_none'$"):
        build_model(config.model)
    with pytest.raises(UserError, match=r"no module 'mine_none' can be imported$"):
        open_source(config).site("site-1", torch.device("cpu"))


@pytest.mark.parametrize("text", ["fedap", "fedap:lambda=0.5", "fedap:lambda", "fedavg:init=a:b", "a b", ":X", "x:"])
def test_what_names_no_module(text):
    assert one_file.parted(text, ["fedap"]) is None


def test_sites_far_away_would_not_find_it(tmp_path, medpfl):
    file = written(tmp_path)
    done = medpfl("export", f"{file}:L2_SP", "--job", tmp_path / "job", check=False)
    assert done.returncode == 2
    assert "mine is of the file mine, which is no installed package: sites would not find it." in done.stderr
    done = medpfl("export", "fedbn", "--set", "hold=0.5", "--job", tmp_path / "job", check=False)
    assert done.returncode == 2 and "StartingPoint is of the file mine" in done.stderr
    assert not (tmp_path / "job").exists()
    assert "weight of the penalty on moving away from the" in medpfl("algorithms", f"{file}:L2_SP").stdout


@pytest.mark.slow
@pytest.mark.parametrize("env", ["sim", "poc"])
def test_flares_processes_have_it_with_the_same_figures(tmp_path, medpfl, env):
    """What lies beside it, in the folder that they are started in, does not stand in for Python's own."""
    file = written(tmp_path)
    if sys.version_info >= (3, 11):
        (tmp_path / "queue.py").write_text("raise SystemExit('the neighbour ran')")
    words = ["--sites", 2, "--rounds", 2, "--train-fraction", 0.05, "--no-new-test", "--track", "none"]
    medpfl("run", f"{file}:L2_SP", "--env", env, *words, "--out", tmp_path / env, cwd=tmp_path)
    medpfl("run", f"{file}:L2_SP", "--env", "inprocess", *words[:-2], "--out", tmp_path / "here")
    there, here = (json.loads((tmp_path / of / "results.json").read_text()) for of in (env, "here"))
    assert there["final"] == here["final"]
    assert re.fullmatch("[0-9a-f]{64}", there["environment"]["code"]["mine"])
