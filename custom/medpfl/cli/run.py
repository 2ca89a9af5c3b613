"""``medpfl run`` and ``medpfl export``: one algorithm, trained here or written as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medpfl.cli import flags
from medpfl.cli import options as opt
from medpfl.cli.consoles import aside, console, say
from medpfl.cli.join import export_join_job, join_run, require_kit
from medpfl.cli.refusals import refuse, require_installed, require_known
from medpfl.config.fields import PLACE, RUN
from medpfl.report.progress import progress_of

DEFAULT = "fedblend"
"""What is run where no algorithm is named, said without loading any (:data:`medpfl.algorithms.DEFAULT`)."""


@opt.takes_options()
def run(
    options: opt.Options,
    algorithm: flags.AlgorithmOrDefault = None,
    env: flags.AnyEnv = None,
    kit: flags.Kit = None,
    gpus: flags.Gpus = None,
    byoc: Annotated[
        bool, typer.Option("--byoc", help="prod: carry this package's code in the job.", rich_help_panel=PLACE)
    ] = False,
    threads: flags.Threads = None,
    experiment: Annotated[
        str | None,
        typer.Option(help="Name of the run.", show_default="algorithm-seed-S", rich_help_panel=RUN),
    ] = None,
    resume: flags.Resume = False,
    overwrite: flags.Overwrite = False,
    new_test: flags.NewTest = None,
    forgetting: flags.Forgetting = None,
    track: flags.Track = None,
    join: flags.Join = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=flags.written("--out"), help="Folder of the results.", show_default="runs/EXPERIMENT"),
    ] = None,
) -> None:
    """Train one algorithm and report every site's own model."""
    simulated = {"--threads": threads, "--new-test": new_test, "--forgetting": forgetting}
    real = {"--kit": kit, "--gpus": gpus, "--byoc": byoc}
    env = env or ("inprocess" if join else "sim")
    require_known(env, "sim", "inprocess", "poc", "prod")
    if join:
        kept = {"--experiment": experiment, "--resume": resume, "--overwrite": overwrite}
        kept["--track"] = track not in (None, "none")
        yes_or_no = {k: v is not None for k, v in simulated.items()}  # their --no-... are ignored as well
        refuse({**yes_or_no, **kept}, "has no meaning with --join, where new sites join a finished run")
        if env != "prod":
            refuse({**real, "--gpus": gpus is not None}, "is for runs where the sites are real (prod)")
        join_run(console, algorithm, join, options, out or join, env=env, kit=kit, gpus=gpus, byoc=byoc)
        return
    from medpfl.report.terminal import print_run
    from medpfl.runs.folder import require_one_wish

    tracker = _tracker(track, env)
    config = options.config(algorithm or DEFAULT)
    folder = out or Path("runs") / (experiment or f"{config.algorithm}-seed-{config.seed}")
    if env == "prod":
        require_installed(config)
        refuse(simulated, "is for runs where one machine has all sites' data, not with prod")
    else:
        refuse(real, "is for runs where the sites are real (prod)")
    require_one_wish(resume, overwrite)
    if resume and not folder.exists():
        say(f"{folder}: there is no run yet to resume; it begins", aside)
    with progress_of(aside, config.algorithm, config) as watch:
        common = {"resume": resume, "overwrite": overwrite, "track": tracker, "watch": watch}
        if env == "prod":
            from medpfl.flare.job.export import gpus_of
            from medpfl.runs.real_sites import run_in_production

            results = run_in_production(
                config,
                folder,
                kit=require_kit(kit),
                experiment=experiment,
                gpus=gpus_of(config, gpus),
                byoc=byoc,
                **common,
            )
        else:
            from medpfl.runs.experiment import run_experiment

            results = run_experiment(
                config,
                folder,
                env=env,
                threads=threads,
                together=new_test,
                forgotten=forgetting,
                **common,
            )
    print_run(results, console)
    if tracker:
        _say_tracked(folder, tracker)
    say(f"Report: {folder / 'report.html'}")


@opt.takes_options()
def export(
    algorithm: flags.AlgorithmName,
    job: Annotated[
        Path,
        typer.Option(parser=flags.written("--job"), help="The job folder to make; its last part is the job's name."),
    ],
    options: opt.Options,
    byoc: Annotated[
        bool, typer.Option("--byoc", help="Carry this package's code in the job.", rich_help_panel=PLACE)
    ] = False,
    track: flags.Track = None,
    gpus: flags.Gpus = None,
    join: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run at a real federation: the job by which --sites join it.", rich_help_panel=RUN
        ),
    ] = None,
) -> None:
    """Write a FLARE job folder, ready to submit."""
    if join:
        refuse({"--track": track not in (None, "none")}, "has no meaning with --join, which tracks nothing")
        folder = export_join_job(algorithm, join, options, job, gpus=gpus, byoc=byoc)
        say(f"Job: {folder}")
        return
    from medpfl.flare.job.export import describe, export_job, gpus_of

    config, replaced = options.config(algorithm), job.is_dir()
    require_installed(config)
    folder = export_job(config, job, byoc=byoc, track=_tracker(track, "prod"), gpus=gpus_of(config, gpus))
    say(f"Job: {folder}")
    for line in [*describe(folder), *(["Replaced the job that was there."] if replaced else [])]:
        say(line)


def _tracker(name: str | None, env: str) -> str | None:
    """What --track names or the environment has by default, checked before any work; None for none."""
    if name == "none" or (name is None and env == "inprocess"):
        return None
    from medpfl.flare.transport.tracking import DEFAULT, check_tracker

    name = name or DEFAULT
    check_tracker(name)
    return name


def _say_tracked(folder: Path, tracker: str) -> None:
    from medpfl.flare.transport.tracking import how_to_see

    if command := how_to_see(folder, tracker):
        say(f"Tracking: {command}")
