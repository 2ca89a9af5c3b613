"""Sites that join a finished run by a FLARE job: in the simulator, in a POC, and at a real federation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from medpfl.assemble import Federation
from medpfl.config import RunConfig
from medpfl.engine.progress import Watch, watch_nothing
from medpfl.errors import Interrupted, UserError
from medpfl.experiment import JOB
from medpfl.flare.export import portable
from medpfl.flare.filter import AllowListFilter
from medpfl.flare.join_controller import JoinController
from medpfl.flare.join_executor import JOIN_TASKS, JoinExecutor
from medpfl.flare.poc import poc
from medpfl.flare.recipes import PackageRecipe, for_server, for_sites, travels_inline
from medpfl.flare.remote import System
from medpfl.flare.simulator import require_no_space, run_simulator
from medpfl.joining import JOINED, finished
from medpfl.joining_run import Joining, checkpoint_of
from medpfl.lock import run_folder


class JoinRecipe(PackageRecipe):
    """The job by which sites join; it goes to them and the server alone, and the run's own sites take no part.

    Args:
        joining: who joins which run.
        experiment: the run's name at the server.
        state_dir: where the server has it; by default in its workspace.
        site_state_dir: where the newcomers keep their folders; by default in their workspaces.
        site_experiment: the folder there, by default ``experiment``.
        byoc: carry this package's code in the job.
        gpus: GPUs that every newcomer must give.
    """

    def __init__(
        self,
        joining: Joining,
        *,
        experiment: str,
        state_dir: Path | None = None,
        site_state_dir: Path | None = None,
        site_experiment: str | None = None,
        byoc: bool = False,
        gpus: int = 0,
    ):
        config, newcomers = joining.config, joining.newcomers
        federation = Federation.of(config.model_copy(update={"device": "cpu"}))
        names = newcomers.site_names
        job = FedJob(name=f"join-{config.algorithm}", min_clients=len(names))
        at_server, at_site = (
            None if folder is None else str(folder.resolve()) for folder in (state_dir, site_state_dir)
        )
        controller = JoinController(for_server(config), names, joining.epochs, experiment, at_server)
        job.to_server(controller, id="medpfl_controller")
        for name in names:
            folder = site_experiment or experiment
            executor = JoinExecutor(for_sites(joining.trained), for_sites(newcomers), folder, at_site)
            job.to(executor, name, tasks=list(JOIN_TASKS))
            gate = AllowListFilter(federation.leaving(joining=True))
            job.to(gate, name, filter_type=FilterType.TASK_RESULT, tasks=list(JOIN_TASKS))
        super().__init__(newcomers, job, names, inline=travels_inline(federation), byoc=byoc, gpus=gpus)


def join_here(
    algorithm: str,
    run: Path,
    said: Mapping[str, Any],
    out: Path,
    *,
    env: Literal["sim", "poc"],
    watch: Watch = watch_nothing,
) -> dict[str, Any]:
    """:func:`medpfl.joining_run.join` through FLARE's simulator or a POC; the figures are the same.

    Raises:
        UserError: as there; or the job ended early, and the message says why.
    """
    config, _ = finished(checkpoint_of(run), f"--join {run}")
    joining = Joining.of(algorithm, run, config, said)
    if joining.newcomers is None:
        raise UserError(f"--env {env}: held-out centres join in one process; leave it out, or give data with --data")
    with run_folder(require_no_space(out)):
        recipe = JoinRecipe(joining, experiment="state", state_dir=run, site_state_dir=out, site_experiment="joined")
        names = joining.newcomers.site_names
        if env == "sim":
            again = "give the same command again"
            results = run_simulator(recipe, out, threads=len(names), results_file=JOINED, again=again)
        else:
            folder = out.resolve() / "flare-join"
            with poc(folder, names) as system:
                results = system.complete(system.submit(recipe, names), folder, watch, pause=0.5, results_file=JOINED)
        return joining.write(results, out)


def join_in_production(
    algorithm: str,
    run: Path,
    said: Mapping[str, Any],
    out: Path,
    *,
    kit: Path,
    gpus: int | None = None,
    byoc: bool = False,
    watch: Watch = watch_nothing,
) -> dict[str, Any]:
    """Lets real sites join a run that has ended at their federation's server.

    Args:
        algorithm: must be the run's.
        run: its folder on this machine, whose job.json says what it was.
        said: see :meth:`medpfl.joining_run.Joining.of`; ``names`` must be in it.
        out: where join.json is written, and in ``flare/JOB`` what the server kept of the job.
        kit: startup kit of a user who may submit jobs.
        gpus: GPUs every newcomer must give; by default 1 where the device is a GPU.
        byoc: carry this package's code in the job.
        watch: told of the progress.

    Returns:
        The content of join.json. The models stay at the sites.

    Raises:
        UserError: FLARE refuses the kit or the job, or a site cannot join.
        Interrupted: the user no longer follows; the job goes on.
    """
    config, experiment = _of_job(run)
    if not said.get("names"):
        raise UserError("--join with --env prod: give the new sites' names with --sites NAME,NAME")
    joining = Joining.of(algorithm, run, config, said, real=True)
    joining = replace(joining, newcomers=portable(joining.newcomers))
    system = System(kit)
    with run_folder(out):
        gpus = int(joining.trained.device.startswith("cuda")) if gpus is None else gpus
        recipe = JoinRecipe(joining, experiment=experiment, byoc=byoc, gpus=gpus)
        job = system.submit(recipe, joining.newcomers.site_names)
        try:
            results = system.complete(job, out / "flare", watch, results_file=JOINED)
        except KeyboardInterrupt:
            raise Interrupted(
                f"job {job} goes on at the server and leaves the models at the new sites, but its figures are not "
                f"fetched; `nvflare job abort {job} --startup-kit {kit}` stops it"
            ) from None
        return joining.write(results, out)


def _of_job(run: Path) -> tuple[RunConfig, str]:
    """The configuration of a run at a real federation, and its name at the server."""
    file = run / JOB
    if not file.is_file():
        raise UserError(f"--join {run}: no run at a real federation is in it ({file} is missing)")
    note = json.loads(file.read_text())
    return RunConfig(**note["config"]), note["experiment"]
