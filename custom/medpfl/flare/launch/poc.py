"""FLARE's proof of concept: a server and sites as processes of this machine that talk over the network with TLS."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import yaml
from nvflare.tool.poc.poc_commands import gen_default_project_config, get_prod_dir, prepare_poc_provision

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.engine.progress import Progress, Watch
from medpfl.flare.admin.connected import connected_sites
from medpfl.flare.admin.remote import System
from medpfl.flare.job.recipes import PersonalizedRecipe, allow_package
from medpfl.flare.launch.import_path import child_environment
from medpfl.flare.launch.simulator import require_no_space
from medpfl.flare.transport.trust import REHEARSAL

_PATIENCE = 120.0
"""Seconds until server and sites must have started."""


@contextmanager
def poc(folder: Path, sites: Sequence[str]) -> Iterator[System]:
    """A POC while the block runs. Its kits allow the installed package's classes.

    Args:
        folder: made for the startup kits, which are at the same time the workspaces; what it held is thrown away.
        sites: their names.
    """
    kits = _provision(folder.resolve(), sites)
    for name in ["server", *sites]:
        allow_package(kits / name / "local")
    environment = {name: {REHEARSAL: "1"} for name in ["server", *sites]}
    with started(kits / "admin@nvidia.com", kits / "server", [kits / name for name in sites], environment) as system:
        yield system


@contextmanager
def started(
    admin: Path, server: Path, sites: Sequence[Path], environment: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[System]:
    """A FLARE system on this machine while the block runs, from startup kits.

    Its processes end with the block, and with this process however that ends. The server keeps its jobs in its kit.

    Args:
        admin: the kit of a user; the block gets the system as this user sees it, when all sites are connected.
        server: the server's kit.
        sites: the sites' kits, which are called as the sites are.
        environment: environment variables by kit's name, for those that differ from this process's.
    """
    own_storage(server)
    processes: dict[Path, subprocess.Popen] = {}
    try:
        for kit in [server, *sites]:
            processes[kit] = start_kit(kit, (environment or {}).get(kit.name, {}))
        system = System(admin)
        _wait(system, processes, {kit.name for kit in sites})
        yield system
    finally:
        for process in processes.values():
            process.stdin.close()  # the supervisor ends its process with all children
        for process in processes.values():
            process.wait()


def _provision(folder: Path, sites: Sequence[str]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    project = folder / "project.yml"
    gen_default_project_config("dummy_project.yml", str(project))
    content = yaml.safe_load(project.read_text())
    for participant in content["participants"]:
        if participant["type"] == "server":
            participant["fed_learn_port"] = free_port()  # there may be another POC on this machine
    project.write_text(yaml.safe_dump(content, sort_keys=False))
    with open(folder / "prepare.log", "w") as log, redirect_stdout(log):
        prepare_poc_provision(list(sites), len(sites), str(folder), docker_image="")
    return Path(get_prod_dir(str(folder), content["name"]))


def own_storage(server: Path) -> None:
    """Has a server keep its jobs in its kit.

    FLARE's default is one folder in /tmp for all servers of a machine, which then take each other's jobs.

    Args:
        server: its startup kit, which has a ``local/resources.json``.
    """
    file = server / "local" / "resources.json"
    content = json.loads(file.read_text())
    [manager] = [component for component in content["components"] if component["id"] == "job_manager"]
    manager["args"]["uri_root"] = str(server.resolve() / "jobs-storage")
    storage = content["snapshot_persistor"]["args"]["storage"]
    storage["args"]["root_dir"] = str(server.resolve() / "snapshot-storage")
    file.write_text(json.dumps(content, indent=2) + "\n")


def start_kit(kit: Path, environment: Mapping[str, str]) -> subprocess.Popen:
    """Starts a server or a site on this machine. Its processes end when the standard input of what is returned closes.

    Args:
        kit: its startup kit, where ``console.log`` is what it prints.
        environment: environment variables in which it differs from this process.
    """
    command = [sys.executable, "-m", "medpfl.flare.launch.supervisor", str(kit / "startup" / "sub_start.sh"), "--once"]
    own = child_environment()
    own.pop(REHEARSAL, None)  # a kit is one only if it says so
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with open(kit / "console.log", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**own, "PATH": path, **environment},
            start_new_session=True,  # an interrupt is this process's alone, which then stops the others
        )


def _wait(system: System, processes: Mapping[Path, subprocess.Popen], sites: set[str]) -> None:
    until, missing = time.monotonic() + _PATIENCE, sites
    while missing and time.monotonic() < until:
        if ended := [kit for kit, process in processes.items() if process.poll() is not None]:
            raise UserError(f"FLARE did not start {ended[0].name}; {ended[0] / 'console.log'} says why")
        with suppress(UserError), system.session() as session:
            while missing and time.monotonic() < until:
                missing = sites - set(connected_sites(session))
                time.sleep(0.3)
        time.sleep(0.3)
    if missing:
        raise UserError(
            f"{', '.join(sorted(missing))} did not reach the server within {_PATIENCE:.0f} s; console.log in "
            f"{next(iter(processes)).parent}/SITE says more"
        )


def run_in_poc(config: RunConfig, out: Path, *, watch: Watch, track: str | None) -> dict[str, Any]:
    """Runs a federation in a POC of its own; server and sites keep their state in ``out/state``.

    A checkpoint in that folder is gone on from.

    Args:
        config: the run.
        out: the run's folder; the POC's workspaces and the job's results are kept in ``out/flare``.
        watch: told of the run's progress.
        track: see :class:`medpfl.flare.job.recipes.PersonalizedRecipe`.

    Returns:
        The results as the server has them.

    Raises:
        UserError: the run ended early; the message says why.
    """
    out = require_no_space(out)
    recipe = PersonalizedRecipe(config, name=config.algorithm, experiment="state", state_dir=out, track=track)
    watch(Progress("submitted", 0, note="starting server and sites"))
    with poc(out / "flare", config.site_names) as system:
        return system.complete(system.submit(recipe, config.site_names), out / "flare", watch, pause=0.5)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
