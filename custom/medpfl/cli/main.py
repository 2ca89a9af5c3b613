"""The command line. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from medpfl.cli import flags
from medpfl.cli import options as opt
from medpfl.cli.advise import advise
from medpfl.cli.data import data_app
from medpfl.cli.join import export_join_job, join_run, require_kit
from medpfl.cli.lists import algorithms, models
from medpfl.cli.site import site_app
from medpfl.config.fields import PLACE, RUN
from medpfl.core.errors import Interrupted, TornFile, UserError, printable
from medpfl.core.version import __version__
from medpfl.report.progress import progress
from medpfl.report.words import count

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(site_app, name="site")
console, aside = Console(emoji=False), Console(emoji=False, stderr=True)  # what was asked for, and progress
_INTERRUPTED = 130


def _say_version(asked: bool) -> None:
    if asked:
        parts = ", ".join(f"{name} {version(name)}" for name in ("nvflare", "torch", "monai"))
        print(f"medpfl {__version__} ({parts})")
        raise typer.Exit()


@app.callback()
def _common(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the versions and end.")
    ] = False,
) -> None:
    """Personalized federated learning for medical imaging on NVIDIA FLARE."""


DEFAULT = "fedblend"
"""What is run where no algorithm is named, said without loading any (:data:`medpfl.algorithms.DEFAULT`)."""


@app.command()
@opt.takes_options()
def run(
    options: opt.Options,
    algorithm: flags.AlgorithmName = DEFAULT,
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
    out: Annotated[Path | None, typer.Option(help="Folder of the results.", show_default="runs/EXPERIMENT")] = None,
) -> None:
    """Train one algorithm and report every site's own model."""
    simulated = {"--threads": threads, "--new-test": new_test, "--forgetting": forgetting}
    real = {"--kit": kit, "--gpus": gpus, "--byoc": byoc}
    env = env or ("inprocess" if join else "sim")
    _require(env, "sim", "inprocess", "poc", "prod")
    if join:
        kept = {"--experiment": experiment, "--resume": resume, "--overwrite": overwrite}
        kept["--track"] = track not in (None, "none")
        yes_or_no = {k: v is not None for k, v in simulated.items()}  # their --no-... are ignored as well
        _refuse({**yes_or_no, **kept}, "has no meaning with --join, where new sites join a finished run")
        if env != "prod":
            _refuse({**real, "--gpus": gpus is not None}, "is for runs where the sites are real (prod)")
        join_run(console, algorithm, join, options, out or join, env=env, kit=kit, gpus=gpus, byoc=byoc)
        return
    from medpfl.report.terminal import print_run

    tracker = _tracker(track, env)
    config = options.config(algorithm)
    folder = out or Path("runs") / (experiment or f"{algorithm}-seed-{config.seed}")
    if env == "prod":
        _refuse(simulated, "is for runs where one machine has all sites' data, not with prod")
    else:
        _refuse(real, "is for runs where the sites are real (prod)")
    if resume and not folder.exists():
        aside.print(f"{folder}: there is no run yet to resume; it begins", highlight=False, soft_wrap=True)
    with progress(aside, algorithm, config.rounds) as watch:
        common = {"resume": resume, "overwrite": overwrite, "track": tracker, "watch": watch}
        if env == "prod":
            from medpfl.runs.real_sites import run_in_production

            results = run_in_production(
                config,
                folder,
                kit=require_kit(kit),
                experiment=experiment,
                gpus=_gpus(gpus, config),
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
    console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


@app.command()
@opt.takes_options("personal", "mixing", "seed")
def compare(
    algorithms: Annotated[
        list[str], typer.Argument(help="ALGORITHM or ALGORITHM:KEY=VALUE, e.g. fedap:mixing=uniform.")
    ],
    options: opt.Options,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to K-1, each with a partition of its own.")] = 3,
    env: flags.Env = "inprocess",
    threads: flags.Threads = None,
    overwrite: flags.Overwrite = False,
    new_test: flags.NewTest = None,
    forgetting: flags.Forgetting = None,
    sweep: flags.Sweep = None,
    out: Annotated[Path, typer.Option(help="Folder of the results; finished runs in it are used again.")] = Path(
        "runs/compare"
    ),
) -> None:
    """Train algorithms on the same splits and seeds and compare them pair by pair; local is always among them."""
    _require(env, "sim", "inprocess")
    how = {"env": env, "threads": threads, "overwrite": overwrite, "together": new_test, "forgotten": forgetting}
    if sweep:
        from medpfl.report.terminal import sweep_table
        from medpfl.runs.sweep import Sweep, run_sweep

        found = run_sweep(
            algorithms,
            Sweep.parse(sweep),
            seeds,
            options.fields,
            out,
            said_in=options.naming_preset,
            progress=lambda title, total: progress(aside, title, total),
            **how,
        )
        console.print(sweep_table(found))
        files = ", ".join(str(out / name) for name in ("sweep.md", "sweep.csv", "report.html"))
        console.print(f"Table, figures for other tools and report: {files}", highlight=False, soft_wrap=True)
        _require_all(found["unfinished"])
        return
    from medpfl.report.terminal import comparison_table
    from medpfl.runs.comparison import run_comparison

    comparison = run_comparison(
        options.configs(algorithms, seeds),
        out,
        progress=lambda title, total: progress(aside, title, total),
        **how,
    )
    console.print(comparison_table(comparison, console.width))
    console.print(f"Table and report: {out / 'comparison.md'}, {out / 'report.html'}", highlight=False, soft_wrap=True)
    _require_all(comparison["unfinished"])


def _require_all(unfinished: list[dict[str, Any]]) -> None:
    """UserError, for whoever reads the exit code alone, if runs are in no table."""
    if unfinished:
        raise UserError(f"{count(len(unfinished), 'run')} ended early; the tables are of the others")


@app.command()
@opt.takes_options()
def export(
    algorithm: flags.AlgorithmName,
    job: Annotated[Path, typer.Option(help="The job folder to make; its last part is the job's name.")],
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
        _refuse({"--track": track not in (None, "none")}, "has no meaning with --join, which tracks nothing")
        folder = export_join_job(algorithm, join, options, job, gpus=gpus, byoc=byoc)
        console.print(f"Job: {folder}", highlight=False, soft_wrap=True)
        return
    from medpfl.flare.job.export import describe, export_job

    config, replaced = options.config(algorithm), job.is_dir()
    folder = export_job(config, job, byoc=byoc, track=_tracker(track, "prod"), gpus=_gpus(gpus, config))
    console.print(f"Job: {folder}", highlight=False, soft_wrap=True)
    for line in [*describe(folder), *(["Replaced the job that was there."] if replaced else [])]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about runs."""
    from medpfl.report.page import write_report
    from medpfl.report.reading import load_results

    if out.name == "results.json":
        raise UserError(f"--out {out}: is the name of a run's results; choose another file")
    runs = [load_results(folder, finished=False) for folder in folders]
    try:
        page = write_report(runs, out)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        which = ", ".join(map(str, folders))
        raise UserError(f"{which}: cannot be shown, damaged or changed by hand ({error!r})") from error
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


app.command()(advise)
app.command()(algorithms)
app.command()(models)


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
        console.print(f"Tracking: {command}", highlight=False, soft_wrap=True)


def _require(env: str, *known: str) -> None:
    if env not in known:
        raise UserError(f"--env {env}: use {', '.join(known[:-1])} or {known[-1]}")


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"{name} {why}; leave it out")


def _gpus(given: int | None, config: RunConfig) -> int:
    return int(config.device.startswith("cuda")) if given is None else given


def main() -> None:
    """Entry point. A user's mistake is a line on stderr and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        _say_wrong(str(error))
        sys.exit(2)
    except TornFile as error:  # where an earlier state would do, it was used
        _say_wrong(f"{error}; restore it from a copy, or begin the run anew (--overwrite)")
        sys.exit(2)
    except Interrupted as stop:
        _say_stopped(str(stop))
        sys.exit(_INTERRUPTED)
    except OSError as error:  # a folder where a file is to be, a full disk: what none of the commands has told better
        _say_wrong(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        sys.exit(2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what typer makes of an interrupt
            _say_stopped(_AFTER_A_STOP.get(next(iter(sys.argv[1:]), ""), "stopped"))
        raise


_AFTER_A_STOP = {
    "run": "stopped; the same command with --resume goes on from the last finished round",
    "compare": "stopped; the same command without --overwrite goes on from the last finished round",
}


def _say_wrong(words: str) -> None:
    console = Console(stderr=True, emoji=False)
    console.print(printable(f"medpfl: {words}"), style="red", highlight=False, markup=False, soft_wrap=True)


def _say_stopped(words: str) -> None:
    Console(stderr=True, emoji=False).print(f"medpfl: {words}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
