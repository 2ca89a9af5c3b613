"""`medpfl site init` on a startup kit, and what the kit has then."""

import json
from pathlib import Path

from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.flare.job.classes import FILTER

ROOT = Path(__file__).parents[3]
FEDAP, FEDAVG = ROOT / "jobs" / "organamnist-fedap", ROOT / "jobs" / "organamnist-fedavg"


def init(*arguments):
    return site("init", *arguments)


def site(*arguments):
    """What `medpfl site` answers."""
    return CliRunner().invoke(app, ["site", *map(str, arguments)])


def done(*arguments):
    result = init(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def kept_list(*arguments):
    """What is said where the site's own list refuses the job."""
    result = init(*arguments)
    assert result.exit_code == 1, result.output + repr(result.exception)
    assert "Nothing to change" not in result.output
    return result.output


def read(kit, name):
    return json.loads((kit / "local" / name).read_text())


def write(kit, name, content):
    (kit / "local" / name).write_text(json.dumps(content))


def policy(*allowed, **more):
    filters = [{"path": FILTER, "args": {"allowed": a}} for a in allowed]
    return {"scopes": [{"name": "own", "task_result_filters": filters}], "default_scope": "own", **more}


def files(kit):
    return {file.relative_to(kit): file.read_bytes() for file in kit.rglob("*") if file.is_file()}


def gates(kit):
    """The filters of answers that FLARE's client builds from the kit."""
    scope = create_privacy_manager(Workspace(str(kit)), names_only=False).get_scope("")
    return scope.task_result_filters["out"]


def mistake(*arguments):
    error = init(*arguments).exception
    assert isinstance(error, UserError), repr(error)
    return str(error)
