"""What a site's FLARE process refuses whoever asks, on FLARE's own processors."""

import io
import json
import shutil
import zipfile
from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.class_loader import load_class
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.app.default_app_validator import SiteType
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.utils.app_authz import AppAuthzService

from medpfl.flare.admin.kit_rights import AS_IT_STANDS, GUARD, NO_CODE
from medpfl.flare.admin.site_process import CLOSED, AsItStands, NoCode, SiteGuard
from medpfl.flare.job.classes import AT_SERVER

JOB = "83c80f52-7e11-42e5-95d5-fc78b485d3f3"


@pytest.fixture
def answer(monkeypatch):
    """What a site's FLARE process answers to a message, guarded or not."""
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", [*ClientRequestProcessors.request_processors])

    def call(topic, body="", job=None, engine=None, meta=None):
        message = Message(topic, body)
        if meta is not None:
            message.set_header(RequestHeader.JOB_META, meta)
        if job is not None:
            message.set_header(RequestHeader.JOB_ID, job)
        [processor] = [p for p in ClientRequestProcessors.request_processors if topic in p.get_topics()]
        return str(processor.process(message, engine).body)

    return call


def guard():
    SiteGuard().handle_event(EventType.SYSTEM_BOOTSTRAP, FLContext())


def test_the_kit_names_these_classes():
    named = [load_class(path) for path in (GUARD, NO_CODE, AS_IT_STANDS)]
    assert named == [SiteGuard, NoCode, AsItStands]


def test_no_file_is_served(answer, tmp_path):
    (tmp_path / "patients.txt").write_text("Ada Example")
    command = f"cat {tmp_path / 'patients.txt'}"
    assert "Ada" in answer(SysCommandTopic.SHELL, command)
    guard()
    guard()
    for topic in CLOSED:
        assert answer(topic, command).startswith("this site serves no files, folders and log lines")
    assert "total" in answer(SysCommandTopic.SYS_INFO)


class Engine:
    """Deletes a job's folder as FLARE's client does, and takes what is deployed or started."""

    def __init__(self, folder):
        self.folder = folder

    def delete_run(self, job):
        shutil.rmtree(folder := Workspace(str(self.folder)).get_run_dir(job))
        return f"Delete run folder: {folder}."

    def get_client_name(self):
        return "site-1"

    @property
    def args(self):
        return SimpleNamespace(workspace=str(self.folder))

    def deploy_app(self, **_):
        (self.folder / "deployed").touch()


@pytest.fixture
def engine(tmp_path, monkeypatch):
    for name in ("startup", "local", "medpfl", JOB):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("nvflare.private.fed.client.training_cmds.ClientEngineInternalSpec", Engine)
    return Engine(tmp_path)


def test_without_a_guard_the_policies_go(answer, engine, tmp_path):
    answer(TrainingTopic.DELETE_RUN, job="local", engine=engine)
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("job", ["local", "medpfl", "startup", "", 7, JOB.upper(), JOB.replace("-", ""), f"{{{JOB}}}"])
def test_no_folder_but_jobs_is_touched(answer, engine, tmp_path, job):
    guard()
    assert answer(TrainingTopic.DELETE_RUN, job=job, engine=engine).endswith("is no job's id")
    assert {path.name for path in tmp_path.iterdir()} == {"startup", "local", "medpfl", JOB}
    assert answer(TrainingTopic.DELETE_RUN, job=JOB, engine=engine) == "deleted"
    assert not (tmp_path / JOB).exists()
    assert answer(TrainingTopic.DELETE_RUN, job=JOB, engine=engine) == "FileNotFoundError (the site's log says more)"
    assert answer(TrainingTopic.DEPLOY, job="local", engine=engine).endswith("is no job's id")


OTHER = "0b7f2f5a-93f3-4a7b-a8a4-96be2a9e2f3c"


@pytest.mark.parametrize("topic", [TrainingTopic.DEPLOY, TrainingTopic.START_JOB])
@pytest.mark.parametrize("meta", [{"job_id": OTHER}, {}, [], "job", {"job_id": [JOB]}])
def test_no_job_is_started_as_another(answer, engine, topic, meta):
    """FLARE would take the code in the folder of the job that its record names."""
    guard()
    assert answer(topic, b"", JOB, engine, meta) == "the job is said to be another one"
    assert answer(topic, b"", None, engine, {"job_id": JOB}) == "the job is said to be another one"


def app(*names, client=None):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("config/config_fed_client.json", json.dumps(client or {}))
        for name in names:
            archive.writestr(name, "no JSON")
    return content.getvalue()


CODE = (
    "custom/sitecustomize.py",
    "CUSTOM/a.py",
    "./custom/a.py",
    "config/../custom/a.py",
    "a\\custom\\a.py",
    "custom/",
)


@pytest.mark.parametrize("name", CODE)
def test_code_is_not_even_unpacked(answer, engine, tmp_path, monkeypatch, name):
    validator = FLAppValidator(site_type=SiteType.CLIENT, custom_validators=[NoCode()])
    monkeypatch.setattr(AppAuthzService, "app_validator", validator)
    guard()
    said = answer(TrainingTopic.DEPLOY, app(name), JOB, engine, {"job_id": JOB})
    assert said.startswith("this site takes no code from jobs (BYOC)")
    assert not (tmp_path / "deployed").exists()
    answer(TrainingTopic.DEPLOY, app("config/customs.json"), JOB, engine, {"job_id": JOB})
    assert (tmp_path / "deployed").exists()


def test_a_site_that_takes_code_takes_it(answer, engine, tmp_path, monkeypatch):
    monkeypatch.setattr(AppAuthzService, "app_validator", FLAppValidator(site_type=SiteType.CLIENT))
    guard()
    answer(TrainingTopic.DEPLOY, app("custom/net.py"), JOB, engine, {"job_id": JOB})
    assert (tmp_path / "deployed").exists()


def test_a_job_that_brings_code_is_refused_by_flares_own_check(tmp_path):
    check = FLAppValidator(site_type=SiteType.CLIENT, custom_validators=[NoCode()])
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config_fed_client.json").write_text("{}")
    assert check.validate(str(tmp_path)) == ("", {})
    (tmp_path / "custom").mkdir()
    said, _ = check.validate(str(tmp_path))
    assert said.startswith("this site takes no code from jobs (BYOC)")


EXECUTOR = {"path": "medpfl.flare.transport.executor.PersonalizedExecutor", "args": {"run_config": {}}}
FILLED_IN = (
    {"executors": [{"tasks": ["x{$PASSWORD[0]}"], "executor": EXECUTOR}]},
    {"executors": [{"tasks": ["train"], "executor": EXECUTOR | {"path": f"{EXECUTOR['path'][:-1]}{{$PASSWORD[0]}}"}}]},
    {
        "m": "medp",
        "executors": [{"tasks": ["train"], "executor": {"path": "{m}" + EXECUTOR["path"].removeprefix("medp")}}],
    },
)


@pytest.mark.parametrize("client", FILLED_IN)
def test_a_job_that_flare_fills_in_is_not_even_unpacked(answer, engine, tmp_path, client):
    """A server would read a variable, by which tasks there are and whether the job starts, before any class is made."""
    guard()
    said = answer(TrainingTopic.DEPLOY, app(client=client), JOB, engine, {"job_id": JOB})
    assert said.endswith("has what FLARE fills in where it is read: such a job is not taken here")
    assert not (tmp_path / "deployed").exists()
    plain = {"executors": [{"tasks": ["train"], "executor": EXECUTOR}]}
    assert "deployed" in answer(TrainingTopic.DEPLOY, app(client=plain), JOB, engine, {"job_id": JOB})


@pytest.mark.parametrize(
    "name", ["config/config_fed_client.conf", "config/a/config_fed_client.yml", "config_fed_client.json"]
)
def test_nor_is_one_in_another_form(answer, engine, tmp_path, name):
    """FLARE takes these where it finds no JSON, and fills them in as it reads them."""
    guard()
    said = answer(TrainingTopic.DEPLOY, app(name), JOB, engine, {"job_id": JOB})
    assert said.endswith("is no configuration in JSON, which is all that is taken here")
    assert not (tmp_path / "deployed").exists()


def test_a_configuration_that_fills_the_memory_is_not_read(answer, engine, tmp_path):
    guard()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config/config_fed_client.json", b" " * (2**26 + 1))
    assert answer(TrainingTopic.DEPLOY, content.getvalue(), JOB, engine, {"job_id": JOB}).endswith("is too large")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("config/config_fed_client.json", '{"a": ' * 5000)
    said = answer(TrainingTopic.DEPLOY, content.getvalue(), JOB, engine, {"job_id": JOB})
    assert said.endswith("is no configuration in JSON, which is all that is taken here")
    assert not (tmp_path / "deployed").exists()


def test_others_jobs_may_be_filled_in_where_the_site_allows_others_classes(answer, engine, tmp_path):
    guard()
    job = app(client={"executors": [{"tasks": ["{SITE_NAME}"], "executor": {"path": "hospital.Executor"}}]})
    listed = [EXECUTOR["path"]]
    for more, said in (([], "is not taken here"), (["hospital.Executor"], "deployed")):
        content = {"class_allow_list": [*listed, *more]}
        (tmp_path / "local" / "resources.json").write_text(json.dumps(content))
        assert said in answer(TrainingTopic.DEPLOY, job, JOB, engine, {"job_id": JOB})
    own = app(client=FILLED_IN[0])
    assert "is not taken here" in answer(TrainingTopic.DEPLOY, own, JOB, engine, {"job_id": JOB})


def test_nor_does_a_server_take_one(tmp_path):
    """What FLARE says of a class that is not allowed has it, in the job's log, which its submitter gets."""
    check = FLAppValidator(site_type=SiteType.SERVER, custom_validators=[AsItStands()])
    app_folder = tmp_path / JOB / "app_server"
    (app_folder / "config").mkdir(parents=True)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "resources.json").write_text(json.dumps({"class_allow_list": list(AT_SERVER)}))
    file = app_folder / "config" / "config_fed_server.json"
    file.write_text(json.dumps({"workflows": [], "components": [{"id": "tracker", "path": "a.Tracker"}]}))
    assert check.validate(str(app_folder)) == ("", {})
    file.write_text(json.dumps({"workflows": [], "components": [{"id": "tracker", "path": "none.{$PASSWORD}"}]}))
    said, _ = check.validate(str(app_folder))
    assert said.endswith("has what FLARE fills in where it is read: such a job is not taken here")
    file.write_text("{}")
    file.with_suffix(".conf").write_text("a = ${PASSWORD}")
    assert "is no configuration in JSON" in check.validate(str(app_folder))[0]
