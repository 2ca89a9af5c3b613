"""A kind of data of somebody's own, beside those of the house."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import ImageTensors
from medpfl.data.check import check
from medpfl.data.finding import Finding
from medpfl.data.kinds import registry
from medpfl.data.kinds.kind import CentreKind
from medpfl.data.kinds.registry import kind_of, said_kind
from medpfl.data.sites import fixed_sites, open_source

HOUSE = ["pamap2", "series", "masks", "folders", "scans", "npz"]


def brightnesses(file):
    return json.loads(Path(file).read_text())


class Source:
    """Four grey images of 28 pixels a part and centre, dark or bright."""

    def __init__(self, config):
        self.config = config

    def model_arguments(self):
        return {"in_channels": 1, "num_classes": 2, "image_size": 28}

    def prepare(self):
        pass

    def site(self, name, device):
        values = torch.tensor(brightnesses(self.config.data)[name])
        images = values[:, None, None, None].expand(-1, 1, 28, 28).to(torch.uint8)
        parts = ("train", "validation", "test")
        return ImageTensors({p: images.to(device) for p in parts}, {p: (values > 127).long().to(device) for p in parts})

    def held_out(self, device, *, divided=False):
        return {}

    def describe(self):
        names = brightnesses(self.config.data)
        sites = {name: {"train": 4, "validation": 4, "test": 4, "classes": {"0": 6, "1": 6}} for name in names}
        described = {"name": "toy", "source": self.config.data, "md5": None, "classes": ["dark", "bright"]}
        return described | {"partition": "natural", "sites": sites, "held_out": {}}

    def inputs(self):
        return None


class ToyKind(CentreKind):
    """A file ``*.toy``: the brightness of each site's images."""

    name, title, form, noun = "toy", "toy files", "a toy file", "brightnesses"

    def is_here(self, data):
        return data.endswith(".toy")

    def is_said_by(self, data_args):
        return "toy" in data_args

    def check(self, data, data_args):
        return [Finding("ok", "a fine toy")]

    def source(self, config):
        return Source(config)

    def path(self, data):
        return data

    def centres(self, data, data_args):
        return data, tuple(brightnesses(data))


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_HOUSE", (ToyKind(), *registry._HOUSE))
    file = tmp_path / "light.toy"
    file.write_text(json.dumps({f"site-{k}": [10, 240, 20, 250] for k in (1, 2, 3)}))
    return str(file)


def test_a_kind_of_ones_own_is_asked_everywhere(toy):
    assert kind_of(toy, {}).name == "toy" and said_kind({"toy": 1, "classes": ["a", "b"]}).name == "toy"
    assert kind_of("bloodmnist", {}).name == "npz"
    assert [finding.message for finding in check(toy)] == ["a fine toy"]
    assert fixed_sites(toy, "natural", {}) == 3
    data = open_source(make_config(algorithm="fedavg", data=toy, partition="natural", sites=3)).site(
        "site-2", torch.device("cpu")
    )
    assert np.asarray(data.labels["train"]).tolist() == [0, 1, 0, 1]


def test_a_run_on_it_from_the_command_line(toy, tmp_path):
    said = ["run", "fedavg", "--data", toy, "--env", "inprocess", "--rounds", "1", "--seed", "1"]
    done = CliRunner().invoke(app, [*said, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    models = sorted(file.stem for file in (tmp_path / "run" / "models").iterdir())
    assert results["data"]["name"] == "toy" and models == ["site-1", "site-2", "site-3"]
    refused = CliRunner().invoke(app, [*said, "--partition", "iid", "--out", str(tmp_path / "other")])
    assert str(refused.exception).startswith("--partition iid: toy files are their own centres'; give natural")


def test_an_installed_package_adds_its_kind(tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, "toy = test_own_kind:ToyKind")
    assert kind_of("light.toy", {}).name == "toy"
    assert [kind.name for kind in registry.kinds()] == ["toy", "function", *HOUSE]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("toy = no_such:Kind", "entry point 'toy' of toys, no_such:Kind, cannot be loaded: ModuleNotFoundError: No"),
        ("toy = json:dumps", "entry point 'toy' of toys, json:dumps, cannot be loaded: TypeError: dumps() missing"),
        ("toy = builtins:dict", "entry point 'toy' of toys, builtins:dict: it is no subclass of medpfl.data.kinds."),
    ],
)
def test_an_installed_kind_that_cannot_be_used_is_named(tmp_path, monkeypatch, entry, words):
    installed(tmp_path, monkeypatch, entry)
    with pytest.raises(UserError) as error:
        kind_of("bloodmnist", {})
    assert str(error.value).startswith(words)


def installed(folder, monkeypatch, entry):
    """A package beside the installed ones, as far as its metadata go, until the end of the test."""
    metadata = folder / "toys-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(registry, "_installed", registry._installed.__wrapped__)  # what was found stays otherwise
