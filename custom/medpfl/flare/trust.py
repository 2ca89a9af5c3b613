"""What a job may choose where it runs: in a simulation or a rehearsal anything, at a hospital no folder and no code.

FLARE's class allow-list and its byoc right guard which components a job loads. A job's settings could get around both,
by naming any function of any installed package as its model or its data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from medpfl.config import RunConfig
from medpfl.data.catalog import is_function
from medpfl.data.site_manifest import FILE, read_content
from medpfl.errors import UserError

REHEARSAL = "MEDPFL_REHEARSAL"
"""Environment variable of processes that belong to whoever submits the jobs: a simulator's, a POC's on one machine."""


def check_job(config: RunConfig, state_dir: str | None, context: FLContext) -> None:
    """Refuses a job that names a folder for its state, or code that it does not bring, unless the site allows it.

    Code that a job brings (``custom/``) is BYOC, which FLARE checks. Other modules must be listed under ``code`` in the
    site's ``local/medpfl.json``.

    Raises:
        UserError: the folder or the code is named.
    """
    if context.get_prop(FLContextKey.SIMULATE_MODE, False) or os.environ.get(REHEARSAL):
        return
    if state_dir is not None:
        raise UserError(f"the job names the folder {state_dir} for its state; only a simulation or a rehearsal may")
    workspace = context.get_engine().get_workspace()
    brought = Path(workspace.get_app_custom_dir(context.get_job_id()))
    allowed = read_content(Path(workspace.get_site_config_dir()) / FILE).get("code", [])
    for what, spec in _named_code(config):
        module = spec.partition(":")[0]
        if module not in allowed and not _lies_in(brought, module):
            raise UserError(
                f"the job names the {what} {spec!r}, code that it does not bring; a site that has it allows it with "
                f'"code": ["{module}"] in local/{FILE}'
            )


def _named_code(config: RunConfig) -> Iterator[tuple[str, str]]:
    if is_function(config.data):
        yield "data", config.data
    if ":" in config.model and not config.model.startswith("monai:"):
        yield "model", config.model


def _lies_in(folder: Path, module: str) -> bool:
    path = folder.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
