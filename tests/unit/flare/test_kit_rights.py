"""What `medpfl site init` makes of a kit's class allow-list and rights, and what FLARE makes of these."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from kits import done, files, mistake, read, write
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.fuel.utils.class_loader import load_class
from nvflare.security.security import COMMAND_CATEGORIES, FLAuthorizer

from medpfl.flare.admin.kit_rights import AS_IT_STANDS, BYOC_NOTE, GUARD, NO_CODE, tightened
from medpfl.flare.job.classes import AT_SERVER, AT_SITE

DEFAULT = list(DEFAULT_CLASS_ALLOW_LIST)
EXECUTOR = "medpfl.flare.transport.executor.PersonalizedExecutor"
SHELL = ("cat", "grep", "head", "ls", "pwd", "tail")
CLOSED = (*SHELL, "report_env", "show_errors", "configure_job_log", "configure_site_log", "call", "byoc")
USED = ("submit_job", "check_status", "abort_job", "list_jobs", "show_stats", "restart", "shutdown", "report_resources")


def allowed(kit, path):
    try:
        ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=Workspace(str(kit)))
    except Exception as error:
        assert "is not in allow_list" in str(error)
        return False
    return True


def may(kit, role, right, org="coordinator"):
    """Whether FLARE's client lets a user of another organisation do this."""
    policy = json.loads(Path(Workspace(str(kit)).get_authorization_file_path()).read_text())
    user = Person("someone", org, role)
    return FLAuthorizer("north", policy).authorize(AuthzContext(right, user, user))[0]


@pytest.fixture
def server(provisioned, tmp_path):
    return Path(shutil.copytree(provisioned / "localhost", tmp_path / "server"))


def test_flare_lets_these_classes_run_and_nothing_else(kit, server):
    assert not any(allowed(kit, path) for path in AT_SITE)
    done(kit)
    done(server)
    for path in AT_SITE:
        assert allowed(kit, path)
        assert load_class(path).__module__.startswith("medpfl.flare.")
    assert all(allowed(server, path) for path in AT_SERVER)
    for path in (
        "medpfl.models.factory.build_model",
        "medpfl.flare.transport.executor.PersonalizedExecutorOfMine",
        "medpfl.flare.launch.poc.start_kit",
        "medpfl.config.named_code.permit",
        "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
        "nvflare.app_opt.xgboost.histogram_based_v2.csv_data_loader.CSVDataLoader",
        "nvflare.app_common.psi.file_psi_writer.FilePSIWriter",
        "subprocess.Popen",
    ):
        assert not allowed(kit, path), path
        assert not allowed(server, path), path
    assert not any(allowed(kit, path) for path in AT_SERVER)
    assert not any(allowed(server, path) for path in AT_SITE)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, [*AT_SITE]),
        (DEFAULT, [*AT_SITE]),
        ([*DEFAULT, "medpfl."], [*AT_SITE]),  # of an earlier `site init`
        (["nvflare.app_opt."], ["nvflare.app_opt.", *AT_SITE]),
        (["nvflare.app_opt.", "medpfl."], ["nvflare.app_opt.", *AT_SITE]),
        (["medpfl", "mine.Own"], ["mine.Own", *AT_SITE]),
        (["medpfl.flare.transport.executor."], [EXECUTOR]),
        (["medpfl.flare."], [*AT_SITE]),
        ([EXECUTOR], [EXECUTOR]),
        (["*"], ["*"]),
        ([*DEFAULT, *AT_SITE], [*DEFAULT, *AT_SITE]),  # written by the site itself
        (["medpflother.Own"], ["medpflother.Own", *AT_SITE]),
    ],
)
def test_a_sites_list_is_narrowed_or_gets_the_classes(kit, listed, expected):
    content = {"format_version": 2, "allow_log_streaming": False, "mine": 1}
    write(kit, "resources.json", content | ({} if listed is None else {"class_allow_list": listed}))
    output = done(kit)
    made = read(kit, "resources.json")
    assert made["class_allow_list"] == expected
    assert made["mine"] == 1
    assert ("class_allow_list: " in output) is (listed != expected)
    before = files(kit)
    assert "Nothing to change" in done(kit)
    assert files(kit) == before


def test_what_is_loose_is_told(kit):
    write(kit, "resources.json", {"class_allow_list": [*DEFAULT, *AT_SITE], "class_list_enforcement_mode": "warn"})
    output = done(kit)
    assert "it has FLARE's own classes too, of which some send logs" in output
    assert "class_list_enforcement_mode is 'warn': every class is allowed here" in output
    write(kit, "resources.json", {"class_allow_list": [*DEFAULT, "medpfl."]})
    assert "class_allow_list: 89 entries (FLARE's own, with 'medpfl.') -> 3 exact classes" in done(kit)
    write(kit, "resources.json", {"class_allow_list": "medpfl."})
    assert "class_allow_list must be a list of names, not 'medpfl.'" in mistake(kit)


def test_a_servers_kit_gets_the_class_allow_list_and_takes_no_job_that_flare_fills_in(server):
    before = files(server)
    said = done(server)
    assert "class_allow_list" in said
    assert "jobs that FLARE fills in from this server's environment: taken -> refused" in said
    assert files(server).keys() - before.keys() == {Path("local/resources.json")}
    made, given = read(server, "resources.json"), read(server, "resources.json.default")
    assert made.pop("class_allow_list") == [*AT_SERVER]
    assert made.pop("app_validator") == {"path": AS_IT_STANDS}
    given.pop("class_allow_list", None)
    assert made == given
    assert "Nothing to change" in done(server)


@pytest.mark.parametrize("role", ["project_admin", "lead", "org_admin", "member"])
def test_no_role_may_bring_code_or_read_files_and_logs(kit, role):
    used = [right for right in USED if may(kit, role, right)]
    own = [right for right in COMMAND_CATEGORIES if may(kit, role, right, "north")]
    done(kit)
    for org in ("coordinator", "north"):
        assert [right for right in CLOSED if may(kit, role, right, org)] == []
    assert [right for right in USED if may(kit, role, right)] == used
    assert [right for right in COMMAND_CATEGORIES if may(kit, role, right, "north")] == [
        right for right in own if right not in CLOSED
    ]


def test_before_they_may(kit):
    assert [right for right in CLOSED if not may(kit, "project_admin", right)] == []
    assert may(kit, "lead", "byoc")
    assert may(kit, "lead", "cat", "north")


def test_a_site_opens_byoc_on_purpose_and_closes_it_again(kit):
    output = done(kit, "--allow-byoc")
    assert BYOC_NOTE in output
    assert may(kit, "project_admin", "byoc")
    assert may(kit, "lead", "byoc")
    assert not may(kit, "org_admin", "byoc")
    assert not any(may(kit, "project_admin", right) for right in SHELL)
    assert "app_validator" not in read(kit, "resources.json")
    before = files(kit)
    assert "Nothing to change" in done(kit, "--allow-byoc")
    assert files(kit) == before
    assert "jobs that bring code: as authorization.json says -> refused (--allow-byoc)" in done(kit)
    assert not may(kit, "project_admin", "byoc")
    assert read(kit, "resources.json")["app_validator"] == {"path": NO_CODE}
    done(kit, "--allow-byoc")
    assert files(kit) == before


OWN = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {"View": "any", "shell_commands": "o:site", "BYOC": "any", "cat": "any"},
        "lead": "none",
        "auditor": ["n:ada", "o:site"],
        "nurse": {"view": "none"},
    },
}


def test_a_sites_own_rights_are_tightened_and_never_loosened(kit):
    write(kit, "authorization.json", OWN)
    assert "authorization.json: rights: the site's own -> none to files, logs" in done(kit)
    made = read(kit, "authorization.json")["permissions"]
    assert made["lead"] == "none"
    assert made["nurse"] == {"view": "none"}
    assert made["project_admin"] == {
        "view": "any",
        "shell_commands": "none",
        "cat": "none",
        "byoc": "none",
        "show_errors": "none",
    }
    assert made["auditor"]["view"] == ["n:ada", "o:site"]
    assert made["auditor"]["byoc"] == "none"
    before = files(kit)
    assert "gives nobody the right byoc; it is kept" in done(kit, "--allow-byoc")
    assert read(kit, "authorization.json")["permissions"] == made
    done(kit)
    assert files(kit) == before


def test_a_sites_own_right_to_byoc_stays_on_purpose_alone(kit):
    write(kit, "authorization.json", OWN)
    done(kit, "--allow-byoc")
    assert read(kit, "authorization.json")["permissions"]["project_admin"]["byoc"] == "any"
    done(kit)
    assert read(kit, "authorization.json")["permissions"]["project_admin"]["byoc"] == "none"


def test_what_nobody_may_stays_so():
    policy = {"format_version": "1.0", "permissions": {"lead": "no", "member": {"operate": "none"}}}
    assert tightened(policy, byoc=False) == policy


def test_files_that_flare_could_not_read_are_named(kit):
    write(kit, "authorization.json", {"format_version": "1.0", "permissions": {"lead": {"view": "someone"}}})
    assert 'authorization.json: not as FLARE reads it: bad condition expression "someone"' in mistake(kit)
    (kit / "local" / "authorization.json").unlink()
    (kit / "local" / "authorization.json.default").unlink()
    assert "FLARE would let all users do all here" in mistake(kit)


def test_own_components_and_an_own_validator_stay(kit):
    mine = {"id": "mine", "path": "mine.Own"}
    write(kit, "resources.json", {"components": [mine], "app_validator": {"path": "mine.Validator"}})
    assert "its own app_validator is kept" in done(kit)
    made = read(kit, "resources.json")
    assert made["components"] == [mine, {"id": "medpfl_guard", "path": GUARD, "args": {}}]
    assert made["app_validator"] == {"path": "mine.Validator"}
    write(kit, "resources.json", {"components": {}})
    assert "components must be a list" in mistake(kit)


def test_the_allowed_classes_are_those_that_jobs_name():
    for path in (*AT_SITE, *AT_SERVER[:2]):
        module, _, name = path.rpartition(".")
        found = getattr(import_module(module), name)
        assert f"{found.__module__}.{found.__name__}" == path
