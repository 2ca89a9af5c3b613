"""The FLARE job by which sites join a run that has ended."""

from __future__ import annotations

from pathlib import Path

from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from medpfl.config.run import RunConfig
from medpfl.engine.federation import Federation
from medpfl.flare.job.recipes import PackageRecipe, for_server, for_sites, require_carried, travels_inline
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.flare.transport.join_controller import JoinController
from medpfl.flare.transport.join_executor import JOIN_TASKS, JoinExecutor


class JoinRecipe(PackageRecipe):
    """The job goes to the newcomers and the server alone, and the run's own sites take no part.

    Args:
        config: the run.
        federation: its parts; what they began from stands in its configuration.
        trained: the run with the newcomers' training settings and device.
        newcomers: says which data they have and how they are called.
        epochs: how long they adapt, at most.
        experiment: the run's name at the server.
        state_dir: where the server has it; by default in its workspace.
        site_state_dir: where the newcomers keep their folders; by default in their workspaces.
        site_experiment: the folder there, by default ``experiment``.
        name: the job's.
        byoc: carry this package's code in the job.
        gpus: GPUs that every newcomer must give.
    """

    def __init__(
        self,
        config: RunConfig,
        federation: Federation,
        trained: RunConfig,
        newcomers: RunConfig,
        epochs: int,
        *,
        experiment: str,
        state_dir: Path | None = None,
        site_state_dir: Path | None = None,
        site_experiment: str | None = None,
        name: str | None = None,
        byoc: bool = False,
        gpus: int = 0,
    ):
        require_carried(federation)
        init = {"init": federation.config.init}
        trained, newcomers = trained.model_copy(update=init), newcomers.model_copy(update=init)
        names = newcomers.site_names
        job = FedJob(name=name or f"join-{config.algorithm}", min_clients=len(names))
        at_server, at_site = (
            None if folder is None else str(folder.resolve()) for folder in (state_dir, site_state_dir)
        )
        job.to_server(JoinController(for_server(config), names, epochs, experiment, at_server), id="medpfl_controller")
        for site in names:
            folder = site_experiment or experiment
            executor = JoinExecutor(for_sites(trained), for_sites(newcomers), folder, at_site)
            job.to(executor, site, tasks=list(JOIN_TASKS))
            gate = AllowListFilter(federation.leaving(joining=True))
            job.to(gate, site, filter_type=FilterType.TASK_RESULT, tasks=list(JOIN_TASKS))
        all_needed = newcomers.model_copy(update={"min_sites": len(names)})
        super().__init__(all_needed, job, names, inline=travels_inline(federation), byoc=byoc, gpus=gpus)
