"""``medpfl compare`` and ``medpfl report``: several runs side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from medpfl.cli import flags
from medpfl.cli import options as opt
from medpfl.cli.consoles import aside, console, say
from medpfl.cli.refusals import require_known
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.report.progress import progress_of


@opt.takes_options("personal", "mixing", "seed")
def compare(
    algorithms: Annotated[
        list[str], typer.Argument(help="ALGORITHM or ALGORITHM:KEY=VALUE, e.g. fedap:mixing=uniform.")
    ],
    options: opt.Options,
    seeds: Annotated[
        str, typer.Option(help="How many, from 0, each with a partition of its own; or which: 3..9, or 0,5,7.")
    ] = "3",
    env: flags.Env = "inprocess",
    threads: flags.Threads = None,
    overwrite: flags.Overwrite = False,
    new_test: flags.NewTest = None,
    forgetting: flags.Forgetting = None,
    sweep: flags.Sweep = None,
    out: Annotated[
        Path,
        typer.Option(parser=flags.written("--out"), help="Folder of the results; finished runs in it are used again."),
    ] = Path("runs/compare"),
) -> None:
    """Train algorithms on the same splits and seeds and compare them pair by pair; local is always among them."""
    require_known(env, "sim", "inprocess")
    from medpfl.runs.comparison import How, run_comparison

    how = How(partial(progress_of, aside), env, threads, overwrite=overwrite, together=new_test, forgotten=forgetting)
    if sweep:
        from medpfl.report.terminal import chosen_table, sweep_table
        from medpfl.runs.sweep import Sweep, run_sweep

        swept, naming = Sweep.grid(sweep), options.naming_preset
        found = run_sweep(algorithms, swept, seeds, options.fields, out, how, said_in=naming)
        console.print(sweep_table(found))
        if chosen := chosen_table(found):
            console.print(chosen)
        files = ", ".join(str(out / name) for name in ("sweep.md", "sweep.csv", "report.html"))
        say(f"Table, figures for other tools and report: {files}")
        _require_all(found["unfinished"])
        return
    from medpfl.report.terminal import comparison_table

    comparison = run_comparison(options.configs(algorithms, seeds), out, how)
    console.print(comparison_table(comparison, console.width))
    say(f"Table and report: {out / 'comparison.md'}, {out / 'report.html'}")
    _require_all(comparison["unfinished"])


def _require_all(unfinished: list[dict[str, Any]]) -> None:
    """UserError, for whoever reads the exit code alone, if runs are in no table."""
    if unfinished:
        raise UserError(f"{count(len(unfinished), 'run')} ended early; the tables are of the others")


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")],
    out: Annotated[Path, typer.Option(parser=flags.written("--out"), help="The page.")] = Path("report.html"),
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
    say(f"Report: {page}")
