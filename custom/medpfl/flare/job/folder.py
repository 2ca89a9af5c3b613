"""What a job folder says about its sites: the run, what leaves, and the contract's hash."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.flare.job.classes import AT_SITE, FILTER
from medpfl.flare.job.filled_in import filled_in
from medpfl.flare.transport.filter import flat
from medpfl.site.contract import Contract
from medpfl.site.local_file import read_object

if TYPE_CHECKING:
    from nvflare.recipe.spec import Recipe


@dataclass(frozen=True)
class Job:
    """What a job folder says about its sites.

    Attributes:
        name: the folder's.
        config: the run, or of sites that join what data they have.
        run: the run, also where sites join it.
        allowed: names and shapes of the tensors that leave, by its list.
        contract: its hash.
        joining: sites join a finished run by it.
        chooses: a site chooses what it uses by its validation patients, and says what that is worth if its policy does.
    """

    name: str
    config: RunConfig
    run: RunConfig
    allowed: dict[str, list[int] | None]
    contract: str = ""
    joining: bool = False
    chooses: bool = False


def place_for(job: Path) -> Path:
    """Where a job folder may be written, with the folders above it: nothing is there, or a job of the same name.

    Raises:
        UserError: something else is there, no folder can be made, or it is no name for FLARE.
    """
    job = Path(os.path.abspath(job))
    if not re.match("[A-Za-z0-9]", job.name):
        raise UserError(f"--job {job}: a job's name begins with a letter or a digit")
    meta = job / "meta.json"
    if (job.exists() or job.is_symlink()) and not (meta.is_file() and read_object(meta).get("name") == job.name):
        raise UserError(f"--job {job}: what is there is no job of that name; give a folder that is not there yet")
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--job {job}: {job.parent} cannot be made a folder ({error.strerror})") from None
    return job


def write_job(recipe: Recipe, job: Path) -> Path:
    """Writes a recipe's job folder where :func:`place_for` allows it; UserError if it cannot be written."""
    try:
        recipe.export(str(job.parent))
    except OSError as error:
        raise UserError(f"--job {job}: cannot be written: {error.strerror or error}") from None
    return job


def read_job(folder: Path) -> Job:
    """What a job's sites send and need, from its client configuration.

    Raises:
        UserError: the folder is no job of this package, its sites send different things, or its server runs another
            contract than theirs, which is all that they agree to.
    """
    files = sorted(folder.glob("*/config/config_fed_client.json"))
    if not files:
        raise UserError(f"{folder}: no job folder: APP/config/config_fed_client.json is needed (`medpfl export`)")
    found, runs_of_server = [], list(_runs_of_server(folder))
    for file in files:
        content = read_object(file)
        if text := filled_in(content):
            raise UserError(
                f"{file}: it has {text[:80]!r}, which FLARE fills in at each site: no site takes such a job"
            )
        try:
            filters = [f for chain in content.get("task_result_filters", []) for f in chain.get("filters", [])]
            allowed = [(f.get("args") or {}).get("allowed") for f in filters if f.get("path") == FILTER]
            given = [e.get("executor", {}).get("args", {}) for e in content.get("executors", [])]
            named = [e.get("executor", {}).get("path") for e in content.get("executors", [])]
            runs = [args.get("newcomers") or args.get("run_config") for args in given]  # of a job by which sites join
        except (AttributeError, TypeError) as error:
            raise UserError(f"{file}: not a job of this package: not as FLARE writes it ({error})") from None
        if len(allowed) != 1 or not runs or not isinstance(runs[0], dict):
            raise UserError(f"{file}: not a job of this package: it has no list of what may leave")
        try:
            config, run = as_sites_read(runs[0]), as_sites_read(given[0]["run_config"])
        except (UserError, AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{file}: not a job of this version of the package: {error}") from None
        if len(named) != 1 or named[0] not in AT_SITE:
            raise UserError(f"{file}: not a job of this package: one executor of its own is needed, it has {named}")
        joining = "newcomers" in given[0]
        contract, *of_server = (Contract(of, config if joining else None) for of in (run, *runs_of_server))
        # Who joins trains by settings of the sites' half alone.
        if any((other.joined or other.hash) != (contract.joined or contract.hash) for other in of_server):
            raise UserError(
                f"{folder}: its server is configured for another run than its sites, which agree to theirs alone; "
                "make it anew (`medpfl export`)"
            )
        chooses = run.resolved_use != "received" and (joining or run.has_rival)
        may_leave = listed(file, allowed[0])
        found.append(Job(folder.resolve().name, config, run, may_leave, contract.hash, joining, chooses))
    if any(other != found[0] for other in found):
        raise UserError(f"{folder}: its sites send different things; prepare the kit without --job")
    return found[0]


def as_sites_read(fields: Mapping[str, Any]) -> RunConfig:
    """A run as server and sites read it from a job; UserError if it is none.

    So it is where the method has values of its own for fields that the job leaves out: they would take the package's.
    """
    found = make_config(**fields)
    try:
        read = RunConfig(**fields)
    except ValidationError:
        read = None
    if read is None or read.model_dump() != found.model_dump():
        raise UserError("it leaves out what a job says of its run, so that a site would read another one")
    return found


def _runs_of_server(folder: Path) -> Iterator[RunConfig]:
    for file in sorted(folder.glob("*/config/config_fed_server.json")):
        try:
            given = [workflow.get("args") or {} for workflow in read_object(file).get("workflows", [])]
            yield from (as_sites_read(args["run_config"]) for args in given if "run_config" in args)
        except (UserError, AttributeError, TypeError) as error:
            raise UserError(f"{file}: not a job of this version of the package: {error}") from None


def listed(file: Path, allowed: Any) -> dict[str, list[int] | None]:
    """Shapes by name of a list of what may leave; UserError if it is none."""
    if isinstance(allowed, list) and all(isinstance(name, str) for name in allowed):
        return dict.fromkeys(allowed)
    if isinstance(allowed, dict) and all(map(_is_shape, (shapes := flat(allowed)).values())):
        return shapes
    raise UserError(
        f"{file}: `allowed` of what may leave must be names of tensors, or their shapes by name "
        f'({{"conv1.weight": [6, 1, 5, 5], ...}}), not {json.dumps(allowed)[:80]}'
    )


def _is_shape(shape: Any) -> bool:
    return shape is None or (isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape))
