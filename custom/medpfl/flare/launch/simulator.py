"""FLARE's simulator as an environment for the command line: its log goes to a file, and it dies with its caller."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv
from torch import cuda

from medpfl.config.run import RunConfig
from medpfl.core.errors import RunEnded, UserError
from medpfl.engine.progress import Progress, Watch, watch_nothing
from medpfl.flare.job.recipes import PackageRecipe, PersonalizedRecipe
from medpfl.flare.launch.import_path import child_environment

logger = logging.getLogger(__name__)

_SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
_DEAD_SITE = re.compile(rb"(?:Communication error with|Subprocess died for) client ([^\s:,]+)")
"""What FLARE's simulator logs of a site process that ended unasked. Its server would wait for that site's answer."""
_SOCKET = 107
"""Characters of a socket's path (sun_path in unix(7), without the 0 at its end)."""
_A_PROCESS = 600
"""MiB of a GPU that CUDA takes for a site's process, roughly; what the network takes comes on top."""
_POLL_SECONDS = 0.5
_LAST_SECONDS = 10.0


class LoggedSimEnv(SimEnv):
    """:class:`SimEnv` whose output goes to ``log``.

    Args:
        log: file for all that the simulator prints.
        clients: names of the simulated sites.
        num_threads: how many sites live at once.
        workspace_root: the simulator's workspace is made in it.

    Attributes:
        dead_site: the site whose process died and ended the run, if one did.
    """

    def __init__(self, log: Path, *, clients: list[str], num_threads: int, workspace_root: Path):
        super().__init__(clients=clients, num_threads=num_threads, workspace_root=str(workspace_root))
        self.log = log
        self.dead_site: str | None = None

    def deploy(self, job: FedJob) -> str:
        """Runs the simulator to its end. Called by FLARE's ``Recipe.execute``."""
        workspace = Path(self.workspace_root) / job.name
        self._ensure_default_component_policy(str(workspace))
        with TemporaryDirectory() as jobs, open(self.log, "ab") as log:
            try:
                job.export_job(jobs)
            except OSError as error:
                why = f"{error.strerror or error}; TMPDIR names another folder for temporary files"
                raise UserError(f"{jobs}: the job cannot be written: {why}") from error
            command = [sys.executable, "-m", "medpfl.flare.launch.supervisor", sys.executable, "-m", _SIMULATOR]
            command += [str(Path(jobs) / job.name), "-w", str(workspace)]
            command += ["-c", ",".join(self.clients), "-t", str(self.num_threads)]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=child_environment()
            ) as process:
                try:
                    code = self._wait(process)
                finally:
                    process.stdin.close()  # after an interrupt or a site's death, this ends the simulator
        self.last_run_failed = code != 0
        return job.name

    def _wait(self, process: subprocess.Popen) -> int:
        with open(self.log, "rb") as log:
            log.seek(0, 2)
            tail = b""
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    tail = tail[-200:] + log.read()
                if found := _DEAD_SITE.search(tail):
                    return self._give_up(process, found[1].decode())

    def _give_up(self, process: subprocess.Popen, site: str) -> int:
        try:
            return process.wait(_LAST_SECONDS)  # a site that dies while the run ends does no harm
        except subprocess.TimeoutExpired:
            self.dead_site = site
            return 1


def simulate(config: RunConfig, out: Path, *, threads: int, watch: Watch, track: str | None) -> dict[str, Any]:
    """Runs a federation in FLARE's simulator; server and sites keep their state in ``out/state``.

    A checkpoint in that folder is gone on from.

    Args:
        config: the run.
        out: the run's folder; the simulator's workspace and log are kept in it.
        threads: sites that live at once; fewer than the sites makes every task a fresh process.
        watch: called after every step.
        track: see :class:`medpfl.flare.job.recipes.PersonalizedRecipe`.

    Returns:
        The results as the server has them.

    Raises:
        RunEnded: the message says why and where the log is.
    """
    config = _where_there_is_room(config, threads)
    recipe = PersonalizedRecipe(
        config, name=config.algorithm, experiment="state", state_dir=require_no_space(out), track=track
    )
    return run_simulator(recipe, out, threads=threads, watch=watch)


def _where_there_is_room(config: RunConfig, threads: int) -> RunConfig:
    """The run, on the CPU where a GPU that nobody asked for has no room for so many processes; a warning says so."""
    if config.device != "auto" or not cuda.is_available():
        return config
    try:
        free = cuda.mem_get_info()[0] / 2**20
    except RuntimeError:  # of a GPU that cannot be used the sites say why
        return config
    if free >= threads * _A_PROCESS:
        return config
    logger.warning(
        "%d sites at once take %.1f GiB of a GPU or more, and %.1f GiB are free: they train on the CPU. --threads K "
        "has fewer sites at once, --env inprocess one after another, and --device cuda asks for the GPU all the same",
        threads,
        threads * _A_PROCESS / 1024,
        free / 1024,
    )
    return config.model_copy(update={"device": "cpu"})


def require_no_space(out: Path) -> Path:
    """The folder's whole path; UserError if FLARE, which splits its own command line at spaces, cannot work in it."""
    out = out.resolve()
    if any(c.isspace() for c in str(out)):
        raise UserError(f"--out {out}: FLARE cannot work in a folder with a space in its name")
    return out


def _require_short(temporary: str) -> None:
    """UserError if the simulator's processes could not open their sockets there, as multiprocessing names them."""
    most = _SOCKET - len(f"/pymp-{8 * 'x'}/listener-{8 * 'x'}")
    if len(temporary) > most:
        raise UserError(
            f"{temporary}: FLARE's simulator opens sockets in the temporary folder, whose path may have {most} "
            f"characters for that and has {len(temporary)}: set TMPDIR to a shorter one, e.g. /tmp, or use "
            "--env inprocess"
        )


def run_simulator(
    recipe: PackageRecipe,
    out: Path,
    *,
    threads: int,
    watch: Watch = watch_nothing,
    results_file: str = "results.json",
    again: str = "the same command with --resume goes on from the last finished round",
) -> dict[str, Any]:
    """Runs a job in FLARE's simulator.

    Args:
        recipe: the job.
        out: the simulator's workspace and log are kept in it.
        threads: sites that live at once.
        watch: called at the start and after every round.
        results_file: what the job writes in its run folder.
        again: what to do, in words, when a site's process died.

    Returns:
        The file's content.

    Raises:
        RunEnded: the job ended early; the message says why and where the log is.
        UserError: it could not begin.
    """
    _require_short(gettempdir())
    workspace = require_no_space(out) / "flare"
    log = workspace.with_suffix(".log")
    env = LoggedSimEnv(log, clients=recipe.config.site_names, num_threads=threads, workspace_root=workspace)
    run_folder = workspace / recipe.name / "server" / "simulate_job"
    for stale in (results_file, "error.json"):
        (run_folder / stale).unlink(missing_ok=True)
    ended = threading.Event()
    watch(Progress("simulator", 0))
    follow = partial(_follow, run_folder / "results.json", recipe.config.rounds, watch, ended)
    watcher = threading.Thread(target=follow, daemon=True)
    watcher.start()
    try:
        recipe.execute(env)
    finally:
        ended.set()
        watcher.join()
    error = run_folder / "error.json"
    if error.exists():
        said = json.loads(error.read_text())
        raise (RunEnded if said.get("early") else UserError)(said["error"])
    if env.dead_site:
        raise RunEnded(
            f"the process of {env.dead_site} died ({env.log} says when; the system kills processes where memory is "
            f"short); {again}"
        )
    results = run_folder / results_file
    found = json.loads(results.read_text()) if results.exists() else {}
    if found.get("status") != "finished":
        raise RunEnded(f"the simulation ended before the run was done; {env.log} says why")
    return found


def _follow(results: Path, rounds: int, watch: Watch, ended: threading.Event) -> None:
    seen, written = -1, 0
    while not ended.wait(0.3):
        if results.exists() and (last := results.stat().st_mtime_ns) != written:
            written, now = last, json.loads(results.read_text())
            if len(now["rounds"]) != seen:
                seen = len(now["rounds"])
                watch(Progress("train" if seen < rounds else "test", seen))
