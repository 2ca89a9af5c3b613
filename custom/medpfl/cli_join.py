"""`medpfl run --join`: new sites join a finished run, in any environment."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from medpfl.cli_options import Options
from medpfl.cli_progress import progress
from medpfl.errors import UserError


def join_run(
    console: Console,
    algorithm: str,
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
        algorithm: the run's.
        run: its folder.
        options: what the user said of the new sites.
        out: where the results go.
        env: ``inprocess``, ``sim``, ``poc`` or ``prod``; the others are for the last.
        kit: startup kit of a user who may submit jobs.
        gpus: GPUs every new site must give.
        byoc: carry this package's code in the job.
    """
    from medpfl.joining import JOINED
    from medpfl.report.joined import print_joined

    said = options.said()
    if env == "inprocess":
        from medpfl.joining_run import join

        results = join(algorithm, run, said, out)
    else:
        from medpfl.flare.join import join_here, join_in_production

        with progress(console, f"joining {algorithm}", 1) as watch:
            if env == "prod":
                real = {"kit": require_kit(kit), "gpus": gpus, "byoc": byoc}
                results = join_in_production(algorithm, run, said, out, **real, watch=watch)
            else:
                results = join_here(algorithm, run, said, out, env=env, watch=watch)
    print_joined(results, console)
    console.print(f"Results: {out / JOINED}", highlight=False, soft_wrap=True)


def require_kit(kit: Path | None) -> Path:
    """The startup kit that --env prod needs; UserError if it is not given."""
    if kit is None:
        raise UserError("--env prod: give --kit, the startup kit of a user who may submit jobs")
    return kit
