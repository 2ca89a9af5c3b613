"""One Recipe a method: a personalized federation as a FLARE job, to execute in any environment or to export.

    from nvflare.recipe import SimEnv
    from medpfl.flare.job.recipes import PersonalizedRecipe

    PersonalizedRecipe(algorithm="local", data="organamnist-sample", sites=5, rounds=10).execute(SimEnv(num_clients=5))

The command line stands on the same classes. ``model`` and ``data`` may be functions or classes of the user's own.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.apis.job_def import ALL_SITES, SERVER_SITE_NAME
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe
from nvflare.utils.job_launcher_utils import PORTABLE_RESOURCE_DEFAULT_KEY

from medpfl.algorithms import algorithms
from medpfl.config.named_code import permit_named
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.home import whole
from medpfl.core.statefile import serialised_bytes
from medpfl.core.version import NOT_IN_JOBS
from medpfl.core.whole_file import write_bytes
from medpfl.data.kinds.npz.catalog import other_samples
from medpfl.data.sites import as_data_say, whole_path
from medpfl.engine.federation import Federation
from medpfl.engine.first_model import is_known_to_numpy
from medpfl.flare.job.classes import AT_SERVER, AT_SITE, PACKAGE, is_own
from medpfl.flare.transport.controller import PersonalizedController, components_config
from medpfl.flare.transport.executor import TASKS, PersonalizedExecutor
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.flare.transport.state import check_experiment
from medpfl.flare.transport.tracking import add_receiver
from medpfl.flare.transport.trust import REHEARSAL

_INLINE_BYTES = 1 << 20
"""Tensors up to this size travel inside their message; larger ones are streamed, as FLARE does by default."""


class SitesJob(FedJob):
    """A job for sites by name, or for all if none is given: one app for them, which carries the code once."""

    def __init__(self, name: str, min_clients: int, sites: Sequence[str]):
        super().__init__(name, min_clients)
        self.sites = sites

    def export_job(self, job_root: str) -> None:
        """Writes the job folder. Called by FLARE's recipes to export, and by its environments to submit."""
        super().export_job(job_root)
        if self.sites:
            deploy_to(Path(job_root) / self.name, self.sites)


class PackageRecipe(Recipe):
    """A FLARE job of this package's classes.

    Args:
        config: says which sites the job is for.
        job: with its controller and executors.
        targets: what its site apps are for: FLARE's word for all sites, or sites by name.
        inline: tensors travel inside their message.
        byoc: carry this package's code in the job, for sites where it is not installed.
        gpus: GPUs that every site's resource manager must have free, and gives to the job.
    """

    def __init__(
        self, config: RunConfig, job: FedJob, targets: Sequence[str], *, inline: bool, byoc: bool = False, gpus: int = 0
    ):
        self.config = config
        if gpus:
            job.job.add_resource_spec(PORTABLE_RESOURCE_DEFAULT_KEY, {"num_of_gpus": gpus})
        job.to_server(components_config())
        if inline:
            # FLARE would announce every array and have it fetched in a message of its own: slower than a small model.
            for target in (SERVER_SITE_NAME, *targets):
                job.to({"np_download_chunk_size": 0}, target)
        # FLARE would gather the imported modules one by one and miss the rest of the package, data files among them.
        job.set_app_packages([PACKAGE])
        if byoc:
            self._carried = TemporaryDirectory()
            _carry(config.data, Path(self._carried.name) / PACKAGE)
            for target in (SERVER_SITE_NAME, *targets):
                job.to(self._carried.name, target)
        super().__init__(job)

    def process_env(self, env: ExecEnv) -> None:
        """Lets the simulator's sites load this package's classes, which FLARE's default allow-list does not name."""
        if isinstance(env, SimEnv):
            allow_package(Path(env.workspace_root) / self._job.name / "local")

    def run(self, env: ExecEnv, *args: Any, **kwargs: Any) -> Any:
        """As FLARE's. Processes of a simulator or a POC may use the folder and the code that the job names.

        They begin meanwhile as children of this one; those that it has later may not.
        """
        before = os.environ.get(REHEARSAL)
        try:
            if isinstance(env, SimEnv | PocEnv):
                os.environ[REHEARSAL] = "1"
            return super().run(env, *args, **kwargs)
        finally:
            os.environ.pop(REHEARSAL, None)
            if before is not None:
                os.environ[REHEARSAL] = before


class PersonalizedRecipe(PackageRecipe):
    """A personalized federation of any algorithm.

    Args:
        config: the run; or leave it out and give its fields by name.
        name: the job's name.
        experiment: name that outlives the job; a job with the same one goes on where the earlier stopped.
        state_dir: where server and sites keep their state in a simulation; by default in their workspaces.
        byoc: carry this package's code in the job, for sites where it is not installed.
        track: ``tensorboard``, ``mlflow`` or ``wandb``: the server's receiver for the sites' measures.
        gpus: GPUs that every site's resource manager must have free, and gives to the job.
        fields: of :class:`medpfl.config.run.RunConfig`. ``model`` may be a class or function that returns a
            ``torch.nn.Module``, ``data`` a function ``(site, seed, **data_args)`` that returns
            :class:`medpfl.core.site_data.SiteLoaders`; the files that define them travel with the job.

    Raises:
        UserError: a field is wrong, the choices make no sense for the model, or the tracker is not installed.
    """

    algorithm = ""

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        name: str | None = None,
        experiment: str = "",
        state_dir: str | os.PathLike | None = None,
        byoc: bool = False,
        track: str | None = None,
        gpus: int = 0,
        **fields: Any,
    ):
        if experiment:
            check_experiment(experiment)
        sources: set[str] = set()
        for key in ("model", "data"):
            if callable(fields.get(key)):
                fields[key], source = _import_spec(fields[key])
                sources.add(source)
        if config is None:
            method = fields.pop("algorithm", self.algorithm)
            data = fields.get("data")
            fields["data"] = whole_path(None if data is None else str(data))
            config = make_config(algorithm=method, **as_data_say(method, fields))
        permit_named(config)
        # A job is made where there may be no GPU, and the server needs none: its GPU is a site's wish alone.
        federation = Federation.of(config.model_copy(update={"device": "cpu"}))
        require_carried(federation)
        # Without a quorum of the user's, FLARE holds the job until all sites are there.
        job = SitesJob(name or f"{config.algorithm}-job", config.min_sites or config.sites, config.names)
        state = None if state_dir is None else whole(state_dir)
        job.to_server(PersonalizedController(for_server(config), experiment, state), id="medpfl_controller")
        at_sites = PersonalizedExecutor(
            for_sites(config.model_copy(update={"init": federation.config.init})), experiment, state
        )
        job.to_clients(at_sites, tasks=list(TASKS))
        gate = AllowListFilter(federation.leaving())
        job.to_clients(gate, filter_type=FilterType.TASK_RESULT, tasks=list(TASKS))
        for source in sorted(sources):
            job.to_server(source)
            job.to_clients(source)
        super().__init__(config, job, [ALL_SITES], inline=travels_inline(federation), byoc=byoc, gpus=gpus)
        if track:
            add_receiver(self, track, job.name)


def _carry(data: str, folder: Path) -> None:
    """This package without what no job needs, with no embedded sample but the one that is asked for.

    The bytes decide: over HTTP a FLARE site takes no message above 4 MiB, and a site's whole app is one.
    """
    source = Path(__file__).parents[2]
    left = {source / name for name in NOT_IN_JOBS}
    samples = other_samples(data)

    def ignored(where: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or name in samples or Path(where) / name in left}

    shutil.copytree(source, folder, ignore=ignored)


def deploy_to(job: Path, sites: Sequence[str]) -> None:
    """Changes a job folder that is for all sites: FLARE would send it to all that are connected, named or not.

    Args:
        job: the folder.
        sites: names of the sites that it is for.
    """
    file = job / "meta.json"
    meta = json.loads(file.read_text())
    for app, targets in meta["deploy_map"].items():
        if ALL_SITES in targets:
            meta["deploy_map"][app] = [SERVER_SITE_NAME, *sites]
    write_bytes(file, json.dumps(meta, indent=2).encode(), durable=False)


def for_server(config: RunConfig) -> dict[str, Any]:
    """The configuration as a job's server has it, as JSON."""
    return config.model_dump(mode="json") | ({"device": "auto"} if config.device.startswith("cuda") else {})


def for_sites(config: RunConfig) -> dict[str, Any]:
    """The configuration as a job's sites have it, as JSON.

    What messages are made of, such as a pretrained model, is the server's business, and where it has it too. Of start
    weights sites have the name alone, which :class:`~medpfl.engine.federation.Federation` gives them.
    """
    return config.model_dump(mode="json") | {"settings": config.settings_of_sites()}


def travels_inline(federation: Federation) -> bool:
    """Whether a shared state, and the start weights beside it, are so small that they go inside their message."""
    start = federation.start.state if federation.start else {}
    return serialised_bytes(federation.initial_shared) + serialised_bytes(start) <= _INLINE_BYTES


def require_carried(federation: Federation) -> None:
    """UserError if what goes beside a shared state is of a type that numpy, and so a message of FLARE, has not."""
    sent = {name: entry.dtypes for channel in federation.channels for name, entry in channel.named.items()}
    if federation.config.mixer.under_model:
        sent |= {name: (tensor.dtype,) for name, tensor in federation.model().state_dict().items()}
    if odd := next((name for name, dtypes in sent.items() if not all(map(is_known_to_numpy, dtypes))), None):
        kind = str(sent[odd][0]).removeprefix("torch.")
        raise UserError(
            f"{federation.config.model}: {odd} is {kind}, which FLARE does not carry to the sites; give it in float32, "
            "or use --env inprocess"
        )


def allow_package(local: Path) -> None:
    """Puts this package's classes into the class allow-list of a workspace's ``local/resources.json``; keeps all else.

    Where a startup kit has only FLARE's ``resources.json.default``, which that file replaces, it is begun from that.
    """
    local.mkdir(parents=True, exist_ok=True)
    file = local / "resources.json"
    found = next((f for f in (file, local / "resources.json.default") if f.exists()), None)
    resources = json.loads(found.read_text()) if found else {"format_version": 2}
    others = [path for path in resources.get("class_allow_list", DEFAULT_CLASS_ALLOW_LIST) if not is_own(path)]
    resources["class_allow_list"] = list(dict.fromkeys([*others, *AT_SITE, *AT_SERVER]))
    file.write_text(json.dumps(resources, indent=2) + "\n")


def _import_spec(thing: Callable[..., Any]) -> tuple[str, str]:
    """``module:name`` of a class or function, and the file that defines it; UserError where nothing can be sent."""
    name = getattr(thing, "__qualname__", "")
    if not name or "." in name or "<" in name:
        raise UserError(f"{thing!r} cannot be sent to the sites: give a class or function from a module's top level")
    module, source = thing.__module__, None
    with suppress(TypeError, OSError):  # what is not written in Python, and a session's own
        source = inspect.getsourcefile(thing)
    if source is None or not Path(source).is_file():
        raise UserError(
            f"{module}:{name} cannot be sent to the sites: no file has it; put it into one, and import it from there"
        )
    if module == "__main__":
        module = Path(source).stem
    if str(Path(source).parent) not in sys.path:
        sys.path.insert(0, str(Path(source).parent))
    return f"{module}:{name}", source


def __getattr__(name: str) -> type[PersonalizedRecipe]:
    """A recipe for each method, called as the method's :attr:`~medpfl.algorithms.base.Algorithm.recipe`."""
    for method in algorithms().values():
        if method.recipe == name:
            made = type(name, (PersonalizedRecipe,), {"algorithm": method.name, "__doc__": f"{method.title}."})
            return globals().setdefault(name, made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
