"""What a job may name where it runs."""

import json
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from medpfl.config import make_config
from medpfl.errors import UserError
from medpfl.flare.trust import REHEARSAL, check_job


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A hospital's: a workspace with local/, and the folder of the job's own code."""
    monkeypatch.delenv(REHEARSAL, raising=False)
    for name in ("local", "custom"):
        (tmp_path / name).mkdir()
    workspace = SimpleNamespace(
        get_app_custom_dir=lambda job: str(tmp_path / "custom"), get_site_config_dir=lambda: str(tmp_path / "local")
    )
    found = FLContext()
    found.get_engine = lambda: SimpleNamespace(get_workspace=lambda: workspace)
    return found


def config(**fields):
    return make_config(algorithm="fedavg", sites=2, **fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"data": "torch.hub:load", "data_args": {"repo_or_dir": "x/y"}}, r"the data 'torch\.hub:load'"),
        ({"model": "torch.hub:load"}, r"the model 'torch\.hub:load'"),
        ({"model": "medpfl.cli:main"}, "the model"),
    ],
)
def test_a_job_cannot_call_what_is_installed(context, fields, named):
    with pytest.raises(UserError, match=named):
        check_job(config(**fields), None, context)


@pytest.mark.parametrize("fields", [{}, {"model": "monai:DenseNet121"}, {"data": "chest-ct"}])
def test_names_of_networks_and_data_are_no_code(context, fields):
    check_job(config(**fields), None, context)


def test_code_that_the_job_brings_is_flares_business(context, tmp_path):
    (tmp_path / "custom" / "own.py").touch()
    (tmp_path / "custom" / "package").mkdir()
    (tmp_path / "custom" / "package" / "__init__.py").touch()
    check_job(config(data="own:hospital", model="package:Net"), None, context)


def test_a_site_allows_modules_by_name(context, tmp_path):
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps({"data": {}, "code": ["hospital.loaders"]}))
    check_job(config(data="hospital.loaders:patients"), None, context)
    with pytest.raises(UserError, match="'hospital:patients'"):
        check_job(config(data="hospital:patients"), None, context)


def test_a_job_cannot_choose_a_folder(context):
    with pytest.raises(UserError, match="the folder /elsewhere"):
        check_job(config(), "/elsewhere", context)


def test_a_simulation_and_a_rehearsal_may(context, monkeypatch):
    own = config(data="torch.hub:load")
    context.set_prop(FLContextKey.SIMULATE_MODE, True, private=True, sticky=True)
    check_job(own, "/elsewhere", context)
    context.set_prop(FLContextKey.SIMULATE_MODE, False, private=True, sticky=True)
    with pytest.raises(UserError):
        check_job(own, "/elsewhere", context)
    monkeypatch.setenv(REHEARSAL, "1")
    check_job(own, "/elsewhere", context)
