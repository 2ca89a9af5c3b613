"""Options of commands that are no fields of a run: where it runs, what is measured, what becomes of its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from medpfl.config.fields import PLACE, RUN
from medpfl.core.errors import UserError


def written(name: str) -> Callable[[str], Path]:
    """Reads the place that a command writes to; an empty one, as of a variable that is not set, is refused.

    Args:
        name: what the command line calls it.
    """

    def path(said: str) -> Path:
        if not said:  # as a path it would be the current folder
            raise UserError(f"{name} '': empty; give a path, . for the current folder")
        return Path(said)

    return path


AlgorithmName = Annotated[str, typer.Argument(help="One of `medpfl algorithms`.")]
AlgorithmOrDefault = Annotated[
    str | None,
    typer.Argument(help="One of `medpfl algorithms`.", show_default="fedblend; with --join the run's"),
]
Env = Annotated[str, typer.Option(help="sim: FLARE's simulator; inprocess: this process.")]
AnyEnv = Annotated[
    str | None,
    typer.Option(
        help="sim: FLARE's simulator; inprocess: this process; poc: a server and sites on this machine; prod: a real "
        "federation, by --kit.",
        show_default="sim; inprocess with --join",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="GPUs a real site's FLARE must give the job.",
        show_default="1 with --device cuda",
        rich_help_panel=PLACE,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sites at once.",
        show_default="all in the simulator, one a core in this process",
        rich_help_panel=PLACE,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Throw away what the folder holds.", rich_help_panel=RUN)]
NewTest = Annotated[
    bool | None,
    typer.Option(
        help="Test the average of all sites' models on all test data.",
        show_default="if it takes few predictions",
        rich_help_panel=RUN,
    ),
]
Forgetting = Annotated[
    bool | None,
    typer.Option(
        help="Measure what a round of local training makes the model forget of the other sites' data.",
        show_default="with fedimpres and fedreg",
        rich_help_panel=RUN,
    ),
]
Track = Annotated[
    str | None,
    typer.Option(
        help="tensorboard, mlflow, wandb or none: the sites' measures, at the server.",
        show_default="tensorboard; none with inprocess",
        rich_help_panel=RUN,
    ),
]
Join = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a finished run: new sites (--data, or those held out) join it; nothing else trains.",
        rich_help_panel=RUN,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last finished round.", rich_help_panel=RUN)]
Kit = Annotated[
    Path | None,
    typer.Option(help="prod: startup kit of a user who may submit jobs.", show_default=False, rich_help_panel=PLACE),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=V,V,...: compare at each value of a setting, or of sites, rounds, local_epochs, partition and so "
        "on, and draw curves; given again, every value of each with every one of the others. FROM..TO..STEP stands for "
        "values, NAME+NAME=V+V,V+V for what changes together.",
        show_default=False,
    ),
]
