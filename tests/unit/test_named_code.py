"""Code by name: what is permitted is imported, and nothing else runs."""

import sys

import pytest

from medpfl.bundle.inference import network
from medpfl.cli.options import Options
from medpfl.config.named_code import named_code, permit_named
from medpfl.config.run import make_config
from medpfl.core import permitted_code
from medpfl.core.errors import UserError
from medpfl.core.permitted_code import permit, permitted_module, require_own
from medpfl.engine.federation import Federation


@pytest.fixture(autouse=True)
def _nothing_permitted(monkeypatch):
    monkeypatch.setattr(permitted_code, "_permitted", set())


@pytest.fixture
def leaves_a_trace(tmp_path, monkeypatch):
    """A module whose import writes a file."""
    (tmp_path / "trace.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "ran"
    sys.modules.pop("trace", None)


def test_what_nobody_permits_is_not_imported(leaves_a_trace):
    permit("traces", "trace.inner")
    with pytest.raises(UserError, match=r'a site permits it with "code": \["trace"\] in local/medpfl.json'):
        permitted_module("trace:f", "model")
    assert not leaves_a_trace.exists()
    permit("trace")
    permitted_module("trace:f", "model")
    assert leaves_a_trace.exists()


def test_names_of_a_configuration():
    config = make_config(algorithm="fedavg", sites=2, data="mine:hospital", model="yours.nets:Net")
    assert dict(named_code(config)) == {"data": "mine:hospital", "model": "yours.nets:Net"}
    assert dict(named_code(make_config(algorithm="fedavg", sites=2, model="monai:DenseNet121"))) == {}


def test_who_runs_a_command_permits_what_it_names():
    Options(data="mine:hospital", model="yours.nets:Net", sites=2).config("fedavg")
    assert permitted_code._permitted == {"mine", "yours.nets"}


def test_a_module_lends_nothing_that_it_imports():
    require_own(UserError, "medpfl.cli.main:UserError", "model")  # of the same package
    with pytest.raises(UserError, match="it is posix's, which 'medpfl' only imports"):
        require_own(__import__("os").system, "medpfl.cli.main:system", "model")


def test_a_bundle_permits_the_network_of_its_own_site(tmp_path, monkeypatch):
    source = "from torch import nn\n\n\nclass Net(nn.Sequential):\n    def __init__(self, classes=2):\n"
    source += "        super().__init__(nn.Flatten(), nn.Linear(784, classes))\n"
    (tmp_path / "own_net.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = make_config(algorithm="fedavg", sites=2, model="own_net:Net", model_args={"classes": 11})
    permit_named(config)
    said = dict(Federation.of(config).delivery(tmp_path).model)
    assert said["code"] == ["own_net"]
    permitted_code._permitted.clear()
    assert network(**said)[1].out_features == 11
    permitted_code._permitted.clear()
    del said["code"]
    with pytest.raises(UserError, match="nobody here has permitted"):
        network(**said)
    ours = Federation.of(make_config(algorithm="fedavg", sites=2)).delivery(tmp_path)
    assert "code" not in ours.model
