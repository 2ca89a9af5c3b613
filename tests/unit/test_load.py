"""medpfl.load: a finished run again, from its folder."""

import json
import shutil

import pytest
from tiny import Net, site_data
from torch.nn import Linear

import medpfl
from medpfl.core import permitted_code

CODE = {"data": site_data, "model": Net}


class Other(Net):
    def __init__(self):
        super().__init__()
        self.one_more = Linear(1, 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    fields = {"sites": 2, "rounds": 1, "alone": "no", "device": "cpu", "quiet": True}
    return medpfl.run("fedbn", **CODE, **fields, out=tmp_path_factory.mktemp("load") / "run")


def test_what_is_loaded_is_the_run(made):
    again = medpfl.load(made.folder, algorithm="fedbn", **CODE)
    assert again.results == made.results and repr(again) == repr(made)
    assert repr(again.table()) == repr(made.table()) and again.report() == made.report()
    for ours, first in zip(again.predictions("site-2"), made.predictions("site-2"), strict=True):
        assert ours.tolist() == first.tolist()


def test_code_that_results_name_is_imported_only_where_it_is_handed_over(made, monkeypatch):
    """A file of somebody else's could name any function here, with arguments."""
    monkeypatch.setattr(permitted_code, "_permitted", permitted := set())
    with pytest.raises(
        medpfl.UserError, match=r"run: that run's data is tiny:site_data, code of your own: give it, da"
    ):
        medpfl.load(made.folder, model=Net)
    with pytest.raises(medpfl.UserError, match=r"run: that run's model is tiny:Net, code of your own: give it, model="):
        medpfl.load(made.folder, data=site_data)
    assert not permitted
    medpfl.load(made.folder, **CODE)
    assert permitted == {"tiny"}


def test_another_method_and_one_that_is_not_known_are_named(made, tmp_path):
    with pytest.raises(medpfl.UserError, match="run: that run is of fedbn, not fedavg"):
        medpfl.load(made.folder, algorithm="fedavg", **CODE)
    results = json.loads((made.folder / "results.json").read_text()) | {"algorithm": "mine"}
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(medpfl.UserError, match="that run is of mine, which is not installed: give it, algorithm"):
        medpfl.load(tmp_path, **CODE)
    with pytest.raises(medpfl.UserError, match=r"none: no such file\. Give the folder that a run wrote"):
        medpfl.load(tmp_path / "none")


def test_data_are_where_they_are_by_now(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "run")
    file = tmp_path / "run" / "results.json"
    results = json.loads(file.read_text())
    results["config"]["data"] = "gone:site_data"
    file.write_text(json.dumps(results))
    again = medpfl.load(tmp_path / "run", **CODE)
    assert again.predictions("site-1")[1].tolist() == made.predictions("site-1")[1].tolist()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"foo": 1}, "foo: Extra inputs are not permitted, not 1"),
        ({"rounds": 0}, "rounds: Input should be greater than or equal to 1, not 0"),
        ({"settings": [1]}, "settings: Input should be a valid dictionary"),
        ({"mixing": [1]}, "mixing: Input should be a valid string"),
    ],
)
def test_a_configuration_that_is_none_is_said_with_its_folder(made, tmp_path, changed, words):
    results = json.loads((made.folder / "results.json").read_text())
    results["config"] |= changed
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(medpfl.UserError, match=f"^{tmp_path}: no run of this version of the package: {words}$"):
        medpfl.load(tmp_path, **CODE)


def test_the_results_stand_for_their_folder(made):
    again = medpfl.load(made.folder / "results.json", **CODE)
    assert again.folder == made.folder and list(again.models) == ["site-1", "site-2"]


def test_files_that_are_no_weights_of_the_network_are_named(made, tmp_path):
    """Of a damaged file, of another network, and of a folder without models, as real sites leave it."""
    shutil.copytree(made.folder, tmp_path / "run")
    model = tmp_path / "run" / "models" / "site-1.safetensors"
    with pytest.raises(medpfl.UserError, match=rf"^{model}: not the weights of test_load:Other for these data$"):
        medpfl.load(tmp_path / "run", data=site_data, model=Other).predictions("site-1")
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(medpfl.UserError, match=f"^{model} is damaged"):
        medpfl.load(tmp_path / "run", **CODE).predictions("site-1")
    shutil.rmtree(model.parent)
    with pytest.raises(medpfl.UserError, match="run: no site's model is in it; real sites keep theirs"):
        medpfl.load(tmp_path / "run", **CODE).predictions("site-1")
