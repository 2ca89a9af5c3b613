"""Sites that join a finished run by a FLARE job: in the simulator, in a POC, and at a real federation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.lock import run_folder
from medpfl.engine.newcomers import JOINED, finished
from medpfl.engine.progress import Watch, watch_nothing
from medpfl.flare.admin.remote import Ended, System, Unknown
from medpfl.flare.admin.submission import going_on, read_note, settled_note, submit_once
from medpfl.flare.job.export import gpus_of, portable
from medpfl.flare.job.folder import place_for, write_job
from medpfl.flare.job.join_recipe import JoinRecipe
from medpfl.flare.launch.poc import poc
from medpfl.flare.launch.simulator import require_no_space, run_simulator
from medpfl.runs.folder import JOB, JOIN_JOB, require_own_folder
from medpfl.runs.join import Joining, checkpoint_to_join

_AGAIN = "the same command"


def recipe_of(joining: Joining, **more: Any) -> JoinRecipe:
    """The job of those who join.

    Args:
        joining: who joins which run.
        more: of :class:`JoinRecipe`.
    """
    config = joining.config
    federation = joining.federation(config.model_copy(update={"device": "cpu"}))
    if joining.start:
        config = config.model_copy(update={"init": str(joining.start.resolve())})
    return JoinRecipe(config, federation, joining.trained, joining.newcomers, joining.epochs, **more)


def join_here(
    algorithm: str | None,
    run: Path,
    said: Mapping[str, Any],
    out: Path,
    *,
    env: Literal["sim", "poc"],
    watch: Watch = watch_nothing,
) -> dict[str, Any]:
    """:func:`medpfl.runs.join.join` through FLARE's simulator or a POC; the figures are the same.

    Raises:
        UserError: as there; or the job ended early, and the message says why.
    """
    config, _ = finished(checkpoint_to_join(run), f"--join {run}")
    joining = Joining.of(algorithm, run, config, said)
    if joining.newcomers is None:
        raise UserError(f"--env {env}: held-out centres join in one process; leave it out, or give data with --data")
    require_own_folder(out)
    with run_folder(require_no_space(out)):
        recipe = recipe_of(joining, experiment="state", state_dir=run, site_state_dir=out, site_experiment="joined")
        names = joining.newcomers.site_names
        if env == "sim":
            again = f"{_AGAIN} begins anew"
            results = run_simulator(recipe, out, threads=len(names), results_file=JOINED, again=again)
        else:
            folder = out.resolve() / "flare-join"
            with poc(folder, names) as system:
                system.again = _AGAIN
                results = system.complete(system.submit(recipe, names), folder, watch, pause=0.5, results_file=JOINED)
        return joining.write(results, out)


def join_in_production(
    algorithm: str | None,
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
        algorithm: the run's, to be sure; None for whatever it is.
        run: its folder on this machine, whose job.json says what it was.
        said: see :meth:`medpfl.runs.join.Joining.of`; ``names`` must be in it.
        out: where join.json is written, and in ``flare/JOB`` what the server kept of the job. Until then join-job.json
            has FLARE's id of the job and the settings, as job.json of a run: the same call follows that job.
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
    joining, experiment = _at_federation(algorithm, run, said)
    system, file = System(kit, again=_AGAIN), out / JOIN_JOB
    require_own_folder(out)
    with run_folder(out):
        if (note := _under_way(system, joining, experiment, file)) is None:
            note = {"job": None, **_settings(joining, experiment)}
            recipe = recipe_of(joining, experiment=experiment, byoc=byoc, gpus=gpus_of(joining.trained, gpus))
            submit_once(system, recipe, note, file)
        try:
            with going_on(system, note["job"], kit):
                results = system.complete(note["job"], out / "flare", watch, results_file=JOINED)
        except Ended:
            file.unlink()
            raise
        except Unknown as error:
            raise UserError(f"{error}: remove {file} to join anew") from None
        whole = joining.write(results, out)
        file.unlink()
        return whole


def export_join(
    algorithm: str | None, run: Path, said: Mapping[str, Any], job: Path, *, gpus: int | None, byoc: bool
) -> Path:
    """Writes the folder of the job that :func:`join_in_production` submits, replacing a job of the same name there.

    Args:
        algorithm: the run's, to be sure; None for whatever it is.
        run: its folder on this machine, with job.json.
        said: as there.
        job: the folder; its last part is the job's name.
        gpus: as there.
        byoc: as there.

    Returns:
        The job folder.
    """
    joining, experiment = _at_federation(algorithm, run, said)
    job = place_for(job)
    recipe = recipe_of(joining, experiment=experiment, name=job.name, byoc=byoc, gpus=gpus_of(joining.trained, gpus))
    return write_job(recipe, job)


def _at_federation(algorithm: str | None, run: Path, said: Mapping[str, Any]) -> tuple[Joining, str]:
    """Who joins which run of a real federation, and the run's name at its server."""
    if (note := read_note(run / JOB)) is None:
        raise UserError(f"--join {run}: no run at a real federation is in it ({run / JOB} is missing)")
    try:
        config = make_config(**note["config"])
    except (UserError, TypeError) as error:
        raise UserError(f"{run / JOB}: no run of this version of the package: {error}") from None
    if not said.get("names"):
        raise UserError("--join at a real federation: give the new sites' names with --sites NAME,NAME")
    joining = Joining.of(algorithm, run, config, said, real=True)
    return replace(joining, newcomers=portable(joining.newcomers)), note["experiment"]


def _settings(joining: Joining, experiment: str) -> dict[str, Any]:
    """What makes one job by which sites join another than the next, as JSON has it."""
    configs = {"config": joining.trained, "newcomers": joining.newcomers}
    dumped = {name: config.model_dump(mode="json") for name, config in configs.items()}
    return {"experiment": experiment, "epochs": joining.epochs, **dumped}


def _under_way(system: System, joining: Joining, experiment: str, file: Path) -> dict[str, Any] | None:
    """The note of the folder's job if the server has one whose results are not fetched; UserError if it is another."""
    note = settled_note(system, file)
    if note is None or note["job"] is None:
        return None
    for name, value in json.loads(json.dumps(_settings(joining, experiment))).items():
        if note.get(name) != value:
            raise UserError(
                f"{file}: job {note['job']}, whose results are not fetched yet, has another {name}: give its command "
                "again, or choose another --out"
            )
    return note
