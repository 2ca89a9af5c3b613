"""The examples of CONTRIBUTING.md, as they stand there: installed as a package of somebody's own, and run."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import tiny
import torch
from typer.testing import CliRunner

from medpfl import algorithms, tasks
from medpfl.algorithms import mechanisms, mixings
from medpfl.algorithms.declared import problem
from medpfl.algorithms.mixing_kinds import MatrixMixing
from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.data.kinds import registry
from medpfl.flare.job import recipes
from medpfl.tasks import TASKS

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
EXAMPLES = {
    re.search(r'"""(\w+)', code)[1].lower(): code for code in re.findall(r"^```python\n(.+?)^```$", TEXT, re.M | re.S)
}
"""Code by the first word of its docstring."""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes a module of an example, and with an entry point a package, as far as its metadata go."""
    found = (algorithms.algorithms, algorithms.origin, mechanisms, mixings, registry._installed, tasks._installed)

    def forget():
        for known in found:
            known.cache_clear()

    def install(example, group="", name="", made=""):
        (tmp_path / f"{example}_example.py").write_text(EXAMPLES[example])
        if group:
            metadata = tmp_path / "examples-1.0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1.0\n")
            (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {example}_example:{made}\n")
        monkeypatch.syspath_prepend(tmp_path)
        forget()
        return importlib.import_module(f"{example}_example")

    yield install
    monkeypatch.undo()
    forget()
    for example in EXAMPLES:
        sys.modules.pop(f"{example}_example", None)
    vars(recipes).pop("FedBodyRecipe", None)


def test_there_are_no_other_examples():
    assert set(EXAMPLES) == {"fedbody", "fedbounded", "classification", "smoothed", "tables"}


def test_no_method_stands_in_for_one_of_the_packages():
    """A mixing of another package called as FedAvg's would be FedAvg's from then on."""
    own = algorithms.mixings()["samples"]
    other = type("Samples", (own,), {"__module__": "theirs"})
    with pytest.raises(UserError, match="mixing:Samples and theirs:Samples are both called 'samples'"):
        algorithms._by_name((own, other))
    assert algorithms._by_name((own, own)) == {"samples": own}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (('name="fedbody"', 'name="fedbodies"'), "the method is called 'fedbodies'; call the entry point so, too"),
        (
            ('"layers": 1', '"layer": 1'),
            "'settings' sets 'layer', which is no setting of its .* .did you mean layers",
        ),
        (('"layers": 1', '"momentum": 0.9'), "no setting of its .*; what is of local training stands in 'training'"),
        (("mixing=Samples", 'mixing="samples"'), "mixing must be a class of Mixing, .* not 'samples'"),
        (("mixing=Samples", 'training=("lr", 0.1), mixing=Samples'), "training must be a dictionary, not"),
        (("mixing=Samples", 'use="blended", mixing=Samples'), "use='blended' is none of .* .did you mean blend"),
        (("mixing=Samples", 'training={"lr": "low"}, mixing=Samples'), "setting lr must be a number, got 'low'"),
    ],
)
def test_a_method_that_would_not_be_what_it_says_is_refused(installed, monkeypatch, changed, told):
    assert changed[0] in EXAMPLES["fedbody"]
    monkeypatch.setitem(EXAMPLES, "fedbody", EXAMPLES["fedbody"].replace(*changed))
    installed("fedbody", algorithms.GROUP, "fedbody", "FEDBODY")
    with pytest.raises(UserError, match=told):
        algorithms.algorithms()


SHOWN = r"BoundedGradients: its shown must take \(self, state\): too many positional arguments"
FINISH = r"its finish must take \(self, round_\): missing a required argument: 'model'"
IS_ON = r"its is_on must take \(cls, values\): missing a required argument: 'values'"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (('switch = "gradient_bound"', 'switch = "gradients"'), "is turned on by 'gradients', which is none of its"),
        (('name = "', 'title = "'), "has no name: say name = "),
        (("def begin(", "def begn("), "has 'begn', which nothing calls; did you mean 'begin'"),
        (('name = "', 'replaces = ("forwards",)\n    name = "'), r"replaces = \('forwards',\): use a tuple of some of"),
        (('name = "', 'replaces = "train"\n    name = "'), "replaces = 'train': use a tuple of some of"),
        (('name = "', 'replaces = None\n    name = "'), "replaces = None: use a tuple of some of"),
        (('"bounded": (0.0, 1.0)', '"bounded": 1'), "use a dictionary of .least, most. by name"),
        (("mechanisms=(BoundedGradients,)", "mechanisms=BoundedGradients"), "mechanisms must be a tuple of classes"),
        ((" = setting(0.0, ", " = setting(..., "), "its setting 'gradient_bound' has no default"),
        (('name = "', 'settings_class = 3\n    name = "'), "settings_class=3: use a class of medpfl.core.settings"),
        (('name = "', 'name = "My '), "is called 'My .*': use small letters, digits"),
        (
            (": float = setting(0.0", ": float = setting('much'"),
            "by default its setting gradient_bound must be a number",
        ),
        (('name = "', 'shown = {"bound": 1}\n    name = "'), "its shown must be a method, not {'bound': 1}"),
        (
            ("    def refuses(self, run)", "    shown = property(str)\n\n    def refuses(self, run)"),
            "its shown must be a",
        ),
        (("    def refuses(self, run)", "    def shown(self): ...\n\n    def refuses(self, run)"), SHOWN),
        (
            ("    def refuses(self, run)", "    def finish(self, round_, model): ...\n\n    def refuses(self, run)"),
            FINISH,
        ),
        (("    def refuses(self, run)", "    def is_on(self, values): ...\n\n    def refuses(self, run)"), IS_ON),
        (('name = "', 'card = dict\n    name = "'), r"its card must take \(self, data, classes\): no signature found"),
        ((": float = setting(0.0", ": list = setting([]"), "'gradient_bound' is <class 'list'>: use float, int, str"),
        (('symbol="G"', 'symbol="mu"'), "the symbol 'mu' of its setting 'gradient_bound' is the name of another"),
        (('symbol="G"', 'symbol="lr"'), "the symbol 'lr' of its setting 'gradient_bound' is the name of another"),
    ],
)
def test_a_mechanism_that_would_do_nothing_is_refused(installed, monkeypatch, changed, told):
    assert changed[0] in EXAMPLES["fedbounded"]
    monkeypatch.setitem(EXAMPLES, "fedbounded", EXAMPLES["fedbounded"].replace(*changed, 1))
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    with pytest.raises(UserError, match=told):
        algorithms.algorithms()


@pytest.mark.parametrize(
    ("has", "told"),
    [
        ({}, "Mine lacks matrix"),
        ({"matrix": lambda self, run, state: None}, "Mine does not say what it is: say what = "),
        ({"matrix": lambda self, run, state: None, "what": "", "name": None}, "Mine has no name"),
        (
            {"matrix": lambda self, run, state, models: None, "what": ""},
            "Mine: its matrix must take (self, run, state), and 'updates' if it is made of this round's: missing",
        ),
        (
            {"matrix": lambda self, run, state: None, "what": "", "common": True, "weighs_sites": True},
            "Mine says common = True and weighs_sites = True",
        ),
        (
            {"matrix": lambda self, run, state: None, "what": "", "newcomer": "the mean"},
            "Mine has newcomer = 'the mean': use a Rule('what a joining site gets', 'why')",
        ),
        ({"begn": lambda self, round_: None}, "Mine has 'begn', which nothing calls"),
    ],
)
def test_a_mixing_that_lacks_something_is_refused(has, told):
    mine = type("Mine", (MatrixMixing,), {"name": "mine", **has})
    method = algorithms.Algorithm("mine", "Mine", "", "", mixing=mine)
    assert told in problem(method, "mine", algorithms.OWN, ())


def test_this_packages_methods_would_be_taken():
    every = (*algorithms.FOR_ALL, *algorithms.LAST)
    assert {a.name: wrong for a in algorithms.OWN if (wrong := problem(a, a.name, algorithms.OWN, every))} == {}


@pytest.mark.parametrize(
    "helper",
    [
        "def show(self, what): return what\n    def _logs(self): return self.show(1)",  # called nearly as shown
        "def channel(self): return 'one'",  # takes less than channels
        "last = True",
    ],
)
def test_a_helper_of_a_name_like_a_hooks_is_none(installed, monkeypatch, helper):
    end = "name = "
    code = EXAMPLES["fedbounded"].replace(f"    {end}", f"    {helper}\n    {end}", 1)
    assert code != EXAMPLES["fedbounded"]
    monkeypatch.setitem(EXAMPLES, "fedbounded", code)
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    assert "fedbounded" in algorithms.algorithms()


def test_a_mechanism_is_not_called_as_a_mixing_is(installed, monkeypatch):
    """Each has its states, its channels and its step by its name: one's would be the other's."""
    code = re.sub(r'^    name = "\w+"', '    name = "samples"', EXAMPLES["fedbounded"], count=1, flags=re.MULTILINE)
    assert code != EXAMPLES["fedbounded"]
    monkeypatch.setitem(EXAMPLES, "fedbounded", code)
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    with pytest.raises(UserError, match="are both called 'samples': give the other package's another name"):
        mechanisms()


def test_what_a_mechanism_shows_stands_in_the_place_of_nothing_that_results_have(installed, monkeypatch):
    code = re.sub(r'^    name = "\w+"', '    name = "status"', EXAMPLES["fedbounded"], count=1, flags=re.MULTILINE)
    shows = code.replace("    def refuses(", "    def shown(self, state):\n        return {}\n\n    def refuses(")
    monkeypatch.setitem(EXAMPLES, "fedbounded", shows)
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    with pytest.raises(UserError, match="fedbounded_example:BoundedGradients: the name 'status' is taken"):
        mechanisms()


def test_the_names_that_results_have_are_those_of_their_page():
    """Impression is what a mechanism shows."""
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    rows = page.partition("## Fields of results.json")[2].partition("\n\nA value that")[0].splitlines()
    names = {name for row in rows for name in re.findall(r"`(\w+)", row.split("|")[1] if row else "")}
    assert names - {"impression", "last", "worst", "std", "counted"} == algorithms._OF_RESULTS


def test_a_package_that_cannot_be_loaded_stops_every_run_since_its_mechanism_may_be_on_by_itself(
    installed, monkeypatch, tmp_path
):
    """Without it FedAvg would be another method, and nobody would be told."""
    on = "    @classmethod\n    def is_on(cls, values):\n        return True\n\n    def refuses("
    monkeypatch.setitem(EXAMPLES, "fedbounded", EXAMPLES["fedbounded"].replace("    def refuses(", on))
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    assert "bounded_gradients" in [part.name for part in tiny.config("fedavg").parts]

    algorithms.algorithms.cache_clear()
    mechanisms.cache_clear()
    monkeypatch.delitem(sys.modules, "fedbounded_example")
    (tmp_path / "fedbounded_example.py").write_text("import no_such_module")
    told = "entry point 'fedbounded' of examples, fedbounded_example:FEDBOUNDED, cannot be loaded: ModuleNotFoundError"
    with pytest.raises(UserError, match=f"{told}.*no_such_module'; mend that package, or uninstall it"):
        tiny.config("fedavg")


def test_two_mechanisms_have_no_setting_in_common(installed, monkeypatch):
    monkeypatch.setitem(EXAMPLES, "fedbounded", EXAMPLES["fedbounded"].replace("gradient_bound", "mu"))
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    with pytest.raises(UserError, match=r"fedbounded_example:\w+ both have a setting 'mu'"):
        mechanisms()


@pytest.mark.parametrize("taken", ["lr", "batch_size"])
def test_a_setting_is_not_called_as_one_of_training(installed, monkeypatch, taken):
    monkeypatch.setitem(EXAMPLES, "fedbounded", EXAMPLES["fedbounded"].replace("gradient_bound", taken))
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    with pytest.raises(UserError, match=f"fedbounded_example:\\w+: its setting '{taken}' is called as one of local"):
        mechanisms()


def test_a_schedule_of_what_no_run_has_is_refused(installed, monkeypatch):
    code = EXAMPLES["fedbody"].replace("mixing=Samples", 'schedule={"round": 3}, mixing=Samples')
    monkeypatch.setitem(EXAMPLES, "fedbody", code)
    installed("fedbody", algorithms.GROUP, "fedbody", "FEDBODY")
    with pytest.raises(UserError, match=r"fedbody: its schedule sets 'round', which is no field of a run.*rounds"):
        tiny.config("fedbody")


def test_a_method(installed):
    """The head of each site is its own, all else the same at all; and it is FedPer with FedProx' term, to the bit."""
    installed("fedbody", algorithms.GROUP, "fedbody", "FEDBODY")
    config = tiny.config("fedbody")
    state, sites = tiny.run(config)
    same, _ = tiny.run(tiny.config("fedper", settings={"mu": 0.1}))

    assert config.choices()["objective"] == "cross-entropy + 0.1/2 |psi - psi_received|^2"
    assert all(tiny.same(state.shared[name], same.shared[name]) for name in config.site_names)
    models = list(tiny.last_models(state, sites).values())
    assert not torch.equal(models[0]["fc2.weight"], models[1]["fc2.weight"])
    assert torch.equal(models[0]["fc1.weight"], models[1]["fc1.weight"])
    assert recipes.FedBodyRecipe.algorithm == "fedbody"


def test_a_task(installed):
    """The loss that is reported is the smoothed one, and the model another than plain classification's."""
    installed("smoothed", tasks.GROUP, "smoothed", "SMOOTHED")
    smoothed, _ = tiny.run(tiny.config("fedavg", rounds=1, task="classification-smoothed"))
    plain, _ = tiny.run(tiny.config("fedavg", rounds=1))

    assert not tiny.same(smoothed.shared["site-1"], plain.shared["site-1"])
    losses = [state.history[0]["sites"]["site-1"]["train_loss"] for state in (smoothed, plain)]
    assert losses[0] != losses[1]
    assert set(smoothed.final["site-1"]["test"]["last"]) == set(plain.final["site-1"]["test"]["last"])


def test_a_mechanism(installed):
    """A step is at most lr x bound long: 4 at most in the epoch (17 samples by 4, the last joins)."""
    installed("fedbounded", algorithms.GROUP, "fedbounded", "FEDBOUNDED")
    config = tiny.config("fedbounded", rounds=1, settings={"gradient_bound": 0.01, "lr": 0.1})
    state, _ = tiny.run(config)
    plain, _ = tiny.run(tiny.config("fedavg", rounds=1, settings={"lr": 0.1}))
    numbers = [record["numbers"] for record in state.history[0]["sites"].values()]

    assert numbers == [{"bounded": 1.0}] * 3
    assert moved(config, state) <= 0.1 * 0.01 * 4 < moved(config, plain)
    assert "numbers" not in plain.history[0]["sites"]["site-1"]
    assert tiny.config("fedap", settings={"gradient_bound": 1}).all_settings["gradient_bound"] == 1
    with pytest.raises(Exception, match="gradient_bound"):
        tiny.config("fedavg", settings={"gradient_bound": -1})


def moved(config, state):
    """How far the trained shared parameters of the first site are from the first model's."""
    first = tiny.plan_of(tiny.Federation.of(config)).initial_shared
    last = state.shared["site-1"]
    return float(sum((last[k] - first[k]).square().sum() for k in first if "running" not in k).sqrt())


def test_a_measure(installed, monkeypatch):
    task = installed("classification").Top2()
    monkeypatch.setitem(TASKS, task.name, task)
    state, _ = tiny.run(tiny.config(task=task.name, select_by="top2"))
    scores, labels = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]], [1, 2, 2]  # right, wrong, right

    assert task.pooled([(torch.tensor(scores).numpy(), torch.tensor(labels).numpy())])["top2"] == pytest.approx(2 / 3)
    of_sites = [record["validation"] for record in state.history[0]["sites"].values()]
    assert all(0 <= found["accuracy"] <= found["top2"] <= 1 for found in of_sites)


def test_a_kind_of_data(installed, tmp_path):
    """Where the first of 16 values is bright, the label is 1."""
    installed("tables", registry.GROUP, "table", "TableKind")
    lines = [
        f"{site},{part},{label},{200 * label},{','.join(['50'] * 15)}"
        for site in ("site-1", "site-2")
        for part in ("train", "validation", "test")
        for label in (0, 1, 0, 1)
    ]
    file = tmp_path / "pictures.csv"
    file.write_text("\n".join(lines))
    checked = CliRunner().invoke(app, ["data", "check", str(file)])
    assert "24 pictures" in checked.output

    words = ["--data", str(file), "--model", "tiny:Net", "--partition", "natural", "--rounds", "2"]
    done = CliRunner().invoke(
        app, ["run", "fedbn", *words, "--env", "inprocess", "--alone", "no", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output + repr(done.exception)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["data"]["sites"]["site-2"] == {"train": 4, "validation": 4, "test": 4, "classes": {"0": 6, "1": 6}}

    file.write_text("site-1,train,0,1,2,3\n")
    assert "row 1 is no picture of 16 values" in CliRunner().invoke(app, ["data", "check", str(file)]).output
