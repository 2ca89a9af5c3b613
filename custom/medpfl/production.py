"""One run at a real federation: its job is submitted, followed and fetched; the sites' models stay at the sites."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from medpfl.config import RunConfig
from medpfl.engine.progress import Watch, watch_nothing
from medpfl.errors import Interrupted, UserError
from medpfl.experiment import RESULTS
from medpfl.flare.export import portable
from medpfl.flare.recipes import PersonalizedRecipe
from medpfl.flare.remote import System
from medpfl.flare.state import check_experiment, folder_name
from medpfl.lock import claimed
from medpfl.report.history import history_csv
from medpfl.report.html import write_report
from medpfl.report.results import load_results
from medpfl.results import write_json
from medpfl.statefile import write_bytes

JOB = "job.json"
"""What a run's folder keeps of its job: FLARE's id, the experiment's name at server and sites, the settings."""


def run_in_production(
    config: RunConfig,
    out: Path,
    *,
    kit: Path,
    experiment: str | None = None,
    gpus: int = 0,
    byoc: bool = False,
    track: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Watch = watch_nothing,
) -> dict[str, Any]:
    """Runs one experiment at a provisioned FLARE system and writes its folder.

    Args:
        config: the run; paths in it do not travel (:func:`medpfl.flare.export.portable`).
        out: the run's folder on this machine.
        kit: startup kit of a user who may submit jobs.
        experiment: name of the run's state at server and sites; by default the folder's with random letters.
        gpus: GPUs every site must give.
        byoc: carry this package's code in the job.
        track: see :class:`medpfl.flare.recipes.PersonalizedRecipe`.
        resume: follow the folder's job; if it has failed, submit it again, which goes on after its last finished step.
        overwrite: forget the folder's job. It is not stopped.
        watch: told of the run's progress.

    Returns:
        The content of results.json.

    Raises:
        UserError: FLARE refuses the kit or the job, or the run did not end well.
        Interrupted: the user no longer follows; the job goes on.
    """
    config = portable(config)
    if experiment:
        check_experiment(experiment)
    system = System(kit)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made a run's folder ({error.strerror}); choose another --out") from None
    with claimed(out, f"{out} is in use by another run; wait for it or choose another --out"):
        note = _earlier(config, out, resume, overwrite)
        if note and (out / RESULTS).exists():
            return load_results(out)
        if note is None or system.has_failed(note["job"]):
            experiment = note["experiment"] if note else experiment or f"{folder_name(out)}-{secrets.token_hex(3)}"
            recipe = PersonalizedRecipe(
                config, name=config.algorithm, experiment=experiment, gpus=gpus, byoc=byoc, track=track
            )
            job = system.submit(recipe, config.site_names)
            note = {"job": job, "experiment": experiment, "config": config.model_dump(mode="json")}
            write_json(out / JOB, note)
        try:
            results = system.complete(note["job"], out / "flare", watch)
        except KeyboardInterrupt:
            raise Interrupted(
                f"job {note['job']} goes on at the server: the same command with --resume follows it again, "
                f"`nvflare job abort {note['job']} --startup-kit {kit}` stops it"
            ) from None
        results["environment"] |= {"env": "prod", "job": note["job"]}
        write_json(out / RESULTS, results)
        write_bytes(out / "history.csv", history_csv(results).encode(), durable=False)
        write_report([results], out / "report.html")
    return results


def _earlier(config: RunConfig, out: Path, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """The note of the folder's job; None if there is to be a new one."""
    file = out / JOB
    if overwrite and not resume:
        for name in (JOB, RESULTS, "history.csv", "report.html"):
            (out / name).unlink(missing_ok=True)
    if not file.exists():
        if (out / RESULTS).exists():
            raise UserError(f"{out} already holds a run of another kind: choose another --out, or --overwrite")
        return None
    if not resume:
        raise UserError(f"{out} already holds a run: give --resume to go on with it, --overwrite, or another --out")
    note = json.loads(file.read_text())
    now = config.model_dump(mode="json")
    for name, value in now.items():
        if (before := note["config"].get(name)) != value:
            raise UserError(
                f"{out} holds a run with {name} = {before!r}, not {value!r}: resume with the same settings or choose "
                "another --out"
            )
    return note
