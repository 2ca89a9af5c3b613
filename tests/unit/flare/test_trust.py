"""What a job may name where it runs."""

import json
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.flare.transport.trust import REHEARSAL, check_job, require_as_written


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A hospital's: a workspace with local/, and the folder of the job's own code."""
    monkeypatch.delenv(REHEARSAL, raising=False)
    for name in ("local", "custom"):
        (tmp_path / name).mkdir()
    workspace = SimpleNamespace(
        get_app_custom_dir=lambda job: str(tmp_path / "custom"),
        get_app_config_dir=lambda job: str(tmp_path / "config"),
        get_site_config_dir=lambda: str(tmp_path / "local"),
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
        ({"model": "medpfl.cli.main:main"}, "the model"),
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


@pytest.mark.parametrize("text", ["{$TOKEN}", "x{$TOKEN[0]}", "x{WORKSPACE}"])
def test_nor_does_a_server_put_its_environment_into_results(context, tmp_path, text):
    (tmp_path / "config").mkdir()

    def written(data):
        content = {"workflows": [{"path": "a.Tracker"}, {"args": {"run_config": {"data": data}}}]}
        (tmp_path / "config" / "config_fed_server.json").write_text(json.dumps(content))

    written("chest-ct")
    require_as_written({"run_config": {"data": "chest-ct"}}, context, at_server=True)
    with pytest.raises(UserError, match="is another one than its file has"):
        require_as_written({"run_config": {"data": "s3cr3t"}}, context, at_server=True)
    written(text)
    with pytest.raises(UserError, match="which FLARE fills in where it runs"):
        require_as_written({"run_config": {"data": "s3cr3t"}}, context, at_server=True)


def test_a_site_allows_modules_by_name(context, tmp_path):
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps({"data": {}, "code": ["hospital.loaders"]}))
    check_job(config(data="hospital.loaders:patients"), None, context)
    with pytest.raises(UserError, match="'hospital:patients'"):
        check_job(config(data="hospital:patients"), None, context)


def test_a_job_cannot_choose_a_folder(context):
    with pytest.raises(UserError, match="the folder /elsewhere"):
        check_job(config(), "/elsewhere", context)


@pytest.mark.parametrize(
    "data", ["/data/patients", "patients/2024", "./patients", "..", "~", "~root", "/data/x.npz", "a\\b", "/x:y"]
)
def test_a_job_cannot_choose_where_data_are(context, data):
    with pytest.raises(UserError, match="names its data by a path"):
        check_job(config(data=data), None, context)


def test_a_job_cannot_choose_a_file_of_start_weights(context):
    with pytest.raises(UserError, match=r"names the file of start weights, '/srv/other/model\.pt'; a job gives their"):
        check_job(config(init="/srv/other/model.pt"), None, context)
    check_job(config(init=f"sha256:{64 * '0'}"), None, context)
    check_job(config(init="/srv/first.pt"), None, context, at_server=True)


@pytest.mark.parametrize("name", ["patients", "scans.json", "images.npz"])
def test_the_folder_that_flare_was_started_in_is_no_place_for_data(context, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    check_job(config(data=name), None, context)
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"the job takes data called '{name}'"):
        check_job(config(data=name), None, context)
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps({"data": {name: "/data/patients"}}))
    check_job(config(data=name), None, context)


def test_names_that_the_site_or_its_data_folder_knows(context, tmp_path, monkeypatch):
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "chest-ct").mkdir(parents=True)
    check_job(config(data="chest-ct"), None, context)
    check_job(config(data="bloodmnist_64"), None, context)
    (tmp_path / "local" / "medpfl.json").write_text(json.dumps({"data": {"eyes/2024": "/data/eyes"}}))
    check_job(config(data="eyes/2024"), None, context)


def test_a_job_cannot_name_the_file_of_a_partition(context):
    with pytest.raises(UserError, match="the file of a partition, 'file:"):
        check_job(config(partition="file:parts.json"), None, context)


def test_the_server_reads_where_it_is_told_what_f_and_the_first_images_are(context):
    settings = {"pretrain": "/models/f.safetensors"}
    check_job(make_config(algorithm="fedap", sites=2, settings=settings), None, context)


def test_a_simulation_and_a_rehearsal_may(context, monkeypatch):
    own = config(data="torch.hub:load")
    for path in ({"data": "/data/patients"}, {"partition": "file:parts.json"}):
        with pytest.raises(UserError):
            check_job(config(**path), None, context)
    context.set_prop(FLContextKey.SIMULATE_MODE, True, private=True, sticky=True)
    check_job(own, "/elsewhere", context)
    check_job(config(data="/data/patients"), None, context)
    check_job(config(partition="file:parts.json"), None, context)
    context.set_prop(FLContextKey.SIMULATE_MODE, False, private=True, sticky=True)
    with pytest.raises(UserError):
        check_job(own, "/elsewhere", context)
    monkeypatch.setenv(REHEARSAL, "1")
    check_job(own, "/elsewhere", context)
