"""Of which runs a sweep is: their configurations, folders and labels."""

import re
from pathlib import Path

import pytest
from sweeping import said, swept

from medpfl.core.errors import UserError
from medpfl.data.sites import as_data_say
from medpfl.runs.asked import configs_of, variants_of
from medpfl.runs.sweep import Sweep, _methods


def test_files_of_variants_and_of_values_are_named_by_their_whole_paths(tmp_path, monkeypatch):
    """Sites run in other folders."""
    monkeypatch.chdir(tmp_path)
    by_sweep = Sweep.parse("pretrain=a.safetensors,b.safetensors")
    made = configs_of(["fedap"], 1, by_sweep.fields(("a.safetensors",), said()))
    made += configs_of(["fedap:pretrain=a.safetensors"], 1, said())
    given = [run.all_settings["pretrain"] for _, run in made if run.algorithm == "fedap"]
    assert given == [str(tmp_path / "a.safetensors")] * 2


def test_files_in_the_home_folder_are_found_there(tmp_path, monkeypatch):
    """No shell puts the home folder for ``~`` behind a colon, and Python does not at all."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ct").mkdir()
    (tmp_path / "a.yml").write_text("transforms: []")
    given = said(init="~/w.safetensors", data="~/ct", augment="~/a.yml")
    assert given["augment"] == {"transforms": []}
    assert (given["init"], given["data"]) == (str(tmp_path / "w.safetensors"), str(tmp_path / "ct"))
    divided = as_data_say("fedavg", {"partition": "file:~/p.json", "sites": 2})
    assert divided["partition"] == f"file:{tmp_path / 'p.json'}"
    runs = configs_of(["fedap:pretrain=~/a.safetensors"], 1, said())
    assert [run.all_settings.get("pretrain") for _, run in runs] == [None, str(tmp_path / "a.safetensors")]


def test_two_values_of_one_folder_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"would have one folder, fedap/pretrain=d_a\.safetensors"):
        swept(tmp_path / "out", ["fedap"], "pretrain=d/a.safetensors,d_a.safetensors")
    assert not list(tmp_path.iterdir())


def test_local_training_is_called_so_whatever_networks_the_variants_name():
    variants, usual = variants_of(["fedavg:model=cifar-resnet20", "fedprox"], said())
    assert usual == "lenet5"
    assert [label for label, _ in _methods(variants)] == [
        "Local training (model=cifar-resnet20)",
        "Local training",
        "FedAvg (model=cifar-resnet20)",
        "FedProx",
    ]


def test_of_what_sites_use_local_training_has_one_run():
    parsed = Sweep.parse("use=received,best")
    points = [configs_of(["fedbn"], 1, parsed.fields(value, said(rounds=1))) for value in parsed.values]
    assert [[config.use for _, config in runs] for runs in points] == [[None, "received"], [None, "best"]]


def test_of_shares_of_the_sites_local_training_which_is_not_drawn_has_one_run():
    parsed = Sweep.parse("participation=0.5,1")
    points = [configs_of(["fedbn"], 1, parsed.fields(value, said(sites="4"))) for value in parsed.values]
    assert [[config.participation for _, config in runs] for runs in points] == [[1, 0.5], [1, 1]]
    assert points[0][0] == points[1][0]


def _printed():
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    return re.findall(r"\| `compare ([^`]*--sweep [^`]+)` \|", page)


@pytest.mark.parametrize("command", _printed())
def test_the_papers_figures_make_configurations(command):
    methods, _, sweep = command.partition(" --sweep ")
    parsed = Sweep.parse(sweep)
    made = [
        configs_of(methods.split(), 1, parsed.fields(value, said(sites=None, rounds=None))) for value in parsed.values
    ]
    at = [
        {name: getattr(run, name, run.all_settings.get(name)) for name in parsed.names}
        for runs in made
        for _, run in runs[-1:]
    ]
    assert [tuple(str(point[name]) for name in parsed.names) for point in at] == [
        tuple(map(str, value)) for value in parsed.values
    ]


def test_the_papers_figures_are_there():
    assert len(_printed()) >= 6
