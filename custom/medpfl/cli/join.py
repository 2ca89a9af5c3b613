"""`medpfl run --join`: new sites join a finished run, in any environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from medpfl.cli.consoles import aside, say
from medpfl.cli.options import Options
from medpfl.cli.refusals import require_of_no_file
from medpfl.core.errors import Interrupted, UserError
from medpfl.report.progress import progress


def join_run(
    console: Console,
    algorithm: str | None,
    run: Path,
    options: Options,
    out: Path,
    *,
    env: str,
    kit: Path | None,
    gpus: int | None,
    byoc: bool,
) -> None:
    """Lets sites join and prints how they do.

    Args:
        console: where.
        algorithm: the run's, to be sure; None for whatever it is.
        run: its folder.
        options: what the user said of the new sites.
        out: where the results go.
        env: ``inprocess``, ``sim``, ``poc`` or ``prod``; the others are for the last.
        kit: startup kit of a user who may submit jobs.
        gpus: GPUs every new site must give.
        byoc: carry this package's code in the job.
    """
    from medpfl.engine.newcomers import JOINED
    from medpfl.report.terminal_joined import print_joined

    said = _said(options, real=env == "prod")
    if algorithm:
        from medpfl.algorithms import taken_up

        algorithm = taken_up(algorithm)
    try:
        if env == "inprocess":
            from medpfl.runs.join import join

            results = join(algorithm, run, said, out)
        else:
            from medpfl.runs.join_job import join_here, join_in_production

            with progress(aside, f"joining {algorithm or run}", 1) as watch:
                if env == "prod":
                    real = {"kit": require_kit(kit), "gpus": gpus, "byoc": byoc}
                    results = join_in_production(algorithm, run, said, out, **real, watch=watch)
                else:
                    results = join_here(algorithm, run, said, out, env=env, watch=watch)
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command lets the new sites join from the start") from None
    print_joined(results, console)
    say(f"Results: {out / JOINED}")


def export_join_job(algorithm: str, run: Path, options: Options, job: Path, *, gpus: int | None, byoc: bool) -> Path:
    """Writes the job folder by which sites join; see :func:`medpfl.runs.join_job.export_join`."""
    from medpfl.runs.join_job import export_join

    return export_join(algorithm, run, _said(options, real=True), job, gpus=gpus, byoc=byoc)


def _said(options: Options, *, real: bool) -> dict[str, Any]:
    said = options.said()
    if real:
        require_of_no_file(said.get("data", ""))
    if options.line["local_epochs"] is None:
        said.pop("local_epochs", None)  # a preset's are those of a round
    return said


def require_kit(kit: Path | None) -> Path:
    """The startup kit that --env prod needs; UserError if it is not given."""
    if kit is None:
        raise UserError("--env prod: give --kit, the startup kit of a user who may submit jobs")
    return kit
