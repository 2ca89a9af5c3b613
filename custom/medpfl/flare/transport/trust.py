"""What a job may choose where it runs: in a simulation or a rehearsal anything, at a hospital no path and no code.

FLARE's class allow-list and its byoc right guard which components a job loads. A job's settings could get around both,
by naming any function of any installed package as its model or its data, or any folder as its data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, WorkspaceConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey

from medpfl.config.named_code import named_code, permit_named
from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.permitted_code import is_function, permit
from medpfl.data.partition.spec import parse_spec
from medpfl.flare.job.filled_in import filled_in
from medpfl.site.local_file import FILE, read_content, read_object

REHEARSAL = "MEDPFL_REHEARSAL"
"""Environment variable of processes that belong to whoever submits the jobs: a simulator's, a POC's on one machine."""


def check_job(config: RunConfig, state_dir: str | None, context: FLContext, *, at_server: bool = False) -> None:
    """Refuses a job that names a path, or code that it does not bring, unless the site allows it; permits the rest.

    Data are where the site's ``local/medpfl.json`` says, or in one of :func:`medpfl.data.places.folders`.
    Code that a job brings (``custom/``) is BYOC, which FLARE checks. Other modules must be listed under ``code`` in
    that file. Start weights are a file at the server alone.

    Raises:
        UserError: the job names a folder for its state, a path as its data, its partition or its start weights, or such
            code.
    """
    if is_rehearsal(context):
        permit_named(config)
        return
    if state_dir is not None:
        raise UserError(f"the job names the folder {state_dir} for its state; only a simulation or a rehearsal may")
    workspace = context.get_engine().get_workspace()
    brought = Path(workspace.get_app_custom_dir(context.get_job_id()))
    content = read_content(Path(workspace.get_site_config_dir()) / FILE)
    if config.data not in content["data"]:
        _check_name(config.data)
    if parse_spec(config.partition).kind == "file":
        raise UserError(f"the job names the file of a partition, {config.partition!r}; only a simulation may")
    if not at_server and config.init and not config.init.startswith("sha256:"):
        raise UserError(f"the job names the file of start weights, {config.init!r}; a job gives their fingerprint")
    allowed = content.get("code", [])
    for what, spec in named_code(config):
        module = spec.partition(":")[0]
        if module not in allowed and not _lies_in(brought, module):
            raise UserError(
                f"the job names the {what} {spec!r}, code that it does not bring; a site that has it allows it with "
                f'"code": ["{module}"] in local/{FILE}'
            )
        permit(module)


def require_as_written(given: Mapping[str, Any], context: FLContext, *, at_server: bool = False) -> None:
    """Refuses a job whose configuration FLARE has filled in here.

    By ``{$NAME}`` it puts a variable of this process's environment in the place, by ``x{$NAME[0]}`` its first
    character. What a site then says of the run, such as its contract's hash, would tell what that is, and the server
    writes the configuration into results.

    Args:
        given: arguments with which FLARE made the executor or the controller.
        context: of the task, or of the server's.
        at_server: it is the controller.

    Raises:
        UserError: they are not those of the job's file, or there is something in it that FLARE fills in.
    """
    if is_rehearsal(context):
        return
    folder = Path(context.get_engine().get_workspace().get_app_config_dir(context.get_job_id()))
    if not folder.is_dir():
        return  # FLARE has made no executor of a file
    side = WorkspaceConstants.SERVER_APP_CONFIG if at_server else WorkspaceConstants.CLIENT_APP_CONFIG
    content = read_object(folder / side)
    if found := filled_in(content):
        raise UserError(f"the job's configuration has {found!r}, which FLARE fills in where it runs")
    made = content["workflows"] if at_server else [entry["executor"] for entry in content.get("executors", [])]
    if not at_server and len(made) != 1:  # which take one task at a time, each by itself
        raise UserError(f"the job has {len(made)} executors, which would work side by side; one is right")
    written = [component.get("args", {}) for component in made]
    if not any(all(args.get(name) == value for name, value in given.items()) for args in written):
        raise UserError("the job's configuration is another one than its file has")


def is_rehearsal(context: FLContext) -> bool:
    """Whether all parties are one person's: in a simulation, or a POC on one machine."""
    return bool(context.get_prop(FLContextKey.SIMULATE_MODE, False) or os.environ.get(REHEARSAL))


def submitter(context: FLContext) -> str:
    """Who submitted the job, as FLARE's server authenticated it: name and organisation; empty in a simulation."""
    meta = context.get_prop(FLContextKey.JOB_META) or {}
    said = [str(meta.get(key) or "") for key in (JobMetaKey.SUBMITTER_NAME.value, JobMetaKey.SUBMITTER_ORG.value)]
    return "/".join(said) if any(said) else ""


def _check_name(data: str) -> None:
    """Refuses data that would be looked for elsewhere than in the folders for data: a path, also a relative one."""
    if is_function(data):
        return
    if any(sign in data for sign in "/\\") or data.startswith((".", "~")):
        raise UserError(
            f"the job names its data by a path, {data!r}; a job gives a name, and local/{FILE} or $MEDPFL_DATA at the "
            "site say where that is"
        )
    if Path(data).exists():
        raise UserError(
            f"the job takes data called {data!r}, and so is something called in the folder in which FLARE was started; "
            f"start FLARE elsewhere, or say in local/{FILE} where the data are"
        )


def _lies_in(folder: Path, module: str) -> bool:
    path = folder.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
