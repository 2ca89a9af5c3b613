"""One run at a real federation: its job is submitted, followed and fetched; the sites' models stay at the sites."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.core.lock import run_folder
from medpfl.core.whole_file import write_text
from medpfl.engine.progress import Progress, Watch, watch_nothing
from medpfl.engine.results import write_results
from medpfl.flare.admin.connected import require_sites
from medpfl.flare.admin.remote import System, Unknown
from medpfl.flare.admin.submission import going_on, settled_note, submit_once
from medpfl.flare.job.export import startable
from medpfl.flare.job.recipes import PersonalizedRecipe
from medpfl.flare.transport.state import check_experiment, folder_name
from medpfl.report.history import history_csv
from medpfl.report.page import write_report
from medpfl.report.reading import Results, load_results
from medpfl.runs.folder import JOB, RESULTS, clear_folder, holds_simulation, require_one_wish, require_own_folder
from medpfl.server.checkpoint import difference, in_the_words_of, require_same_run


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
        config: the run; paths in it do not travel (:func:`medpfl.flare.job.export.startable`). Sites without names are
            those that are connected, if there are as many.
        out: the run's folder on this machine.
        kit: startup kit of a user who may submit jobs.
        experiment: beginning of the name of the run's state at server and sites, by default the folder's name; random
            letters follow. job.json keeps the name, beside FLARE's id of the job (null before it is submitted) and the
            settings; and a token while it is not known whether the server has the job.
        gpus: GPUs every site must give.
        byoc: carry this package's code in the job.
        track: see :class:`medpfl.flare.job.recipes.PersonalizedRecipe`.
        resume: follow the folder's job; if it has failed, submit it again, which goes on after its last finished step.
        overwrite: forget the folder's job. It is not stopped.
        watch: told of the run's progress.

    Returns:
        The content of results.json.

    Raises:
        UserError: FLARE refuses the kit or the job, or the run did not end well.
        Interrupted: the user no longer follows; the job goes on.
    """
    require_one_wish(resume, overwrite)
    config = startable(config)
    if experiment:
        check_experiment(experiment)
    system = System(kit)
    require_own_folder(out)
    with run_folder(out):
        note = None if overwrite else _earlier(system, config, out, resume)
        if note:
            config = in_the_words_of(note["config"], _named_as(config, note))
            if resume and (results := _results_of(note["job"], out)):
                _write_pages(results, out)  # from which a kill may have kept the run
                return results
        else:
            # The server must answer, and the sites be there, before anything is thrown away.
            connected = system.connected()
            config = _with_names(config, connected, watch)
            require_sites(connected, config.site_names, config.min_sites)
            if overwrite:
                clear_folder(out)
            # Random letters, also after the user's own name: --overwrite must not go on in the old state.
            note = {"job": None, "experiment": f"{experiment or folder_name(out)}-{secrets.token_hex(3)}"}
        if note["job"] is None or _has_failed(system, note["job"], out / "flare"):
            note["config"] = config.model_dump(mode="json")
            recipe = PersonalizedRecipe(
                config, name=config.algorithm, experiment=note["experiment"], gpus=gpus, byoc=byoc, track=track
            )
            submit_once(system, recipe, note, out / JOB)
        with going_on(system, note["job"], kit):
            results = system.complete(note["job"], out / "flare", watch)
        results["environment"] |= {"env": "prod", "job": note["job"]}
        results["notes"] = [*results["notes"], *_told(results)]
        write_results(out / RESULTS, results)
        _write_pages(results, out)
    return results


def _write_pages(results: Results, out: Path) -> None:
    write_text(out / "history.csv", history_csv(results))
    write_report([results], out / "report.html")


def _told(results: Results) -> list[str]:
    """What a reader must know of figures that hospitals told."""
    notes = [
        "Numbers of cases are as the sites tell them: by a hospital's default in tens, rounded down, and 10 says 10 or "
        "fewer."
    ]
    if not results.get("verdict") and results["choices"]["use"] != "received":
        notes.append(
            "No site tells what taking part is worth to it, nor why it does not: its policy may keep that in its own "
            "page (verdict=false is a hospital's default; measures=none), or fewer validation patients than its "
            "least_patients chose what it uses. What the sites use may be nothing but the models that they trained "
            "alone."
        )
    return notes


def _has_failed(system: System, job: str, folder: Path) -> bool:
    try:
        return system.has_failed(job, folder)
    except Unknown as error:
        raise UserError(f"{error}: give --overwrite to begin anew") from None


def _results_of(job: str | None, out: Path) -> dict[str, Any] | None:
    """What the folder holds of the job's results; None if it holds none, or another run's."""
    if job is None or not (out / RESULTS).exists():
        return None
    results = load_results(out, finished=False)
    found = results.get("environment", {})
    return results if (found.get("env"), found.get("job")) == ("prod", job) else None


def _earlier(system: System, config: RunConfig, out: Path, resume: bool) -> dict[str, Any] | None:
    """The note of the folder's job; None if there is to be a new one.

    A note whose ``job`` is null is of a job that the server has not got: the same command may go on with it, and
    another one begins anew.
    """
    if holds_simulation(out):
        raise UserError(
            f"{out} holds a run on this machine, perhaps an interrupted one: choose another --out, or --overwrite"
        )
    if (note := settled_note(system, out / JOB)) is None:
        return None
    if not resume and note["job"] is not None:
        raise UserError(f"{out} already holds a run: give --resume to go on with it, --overwrite, or another --out")
    config = _named_as(config, note)
    if not resume and difference(note["config"], config):
        return None
    require_same_run(out, note["config"], config)
    return note


def _named_as(config: RunConfig, note: dict[str, Any]) -> RunConfig:
    """The run with the sites' names that were taken for their number when it was submitted."""
    before = note["config"]
    if config.names or config.sites != before["sites"]:
        return config
    return config.model_copy(update={"names": tuple(before.get("names", ()))})


def _with_names(config: RunConfig, connected: list[str], watch: Watch) -> RunConfig:
    """The run with the connected sites' names where it has only their number."""
    if config.names or set(connected) & set(config.site_names):
        return config
    if not connected:
        raise UserError("no site is connected to FLARE's server; start them")
    if len(connected) != config.sites:
        raise UserError(
            f"the run has {config.sites} sites (--sites), and {len(connected)} are connected; name those that are to "
            f"take part: --sites {','.join(connected)}"
        )
    watch(Progress("submitted", 0, note=f"the connected sites take part: {', '.join(connected)}"))
    return RunConfig(**config.model_dump() | {"names": tuple(connected)})
