"""``medpfl data``: what data sets there are, whether data can be used, how to get some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from medpfl.cli.options import key_values

data_app = typer.Typer(
    help="Data sets: what there is, whether a file can be used, how to get one.", no_args_is_help=True
)
console = Console()


@data_app.command("list")
def data_list() -> None:
    """List the data sets and where they were found."""
    from medpfl.data.kinds.npz.catalog import rows

    table = Table(box=None, pad_edge=False)
    for head in ("data set", "what", "images", "classes", "licence", "where"):
        table.add_column(head, overflow="fold")
    for row in rows():
        table.add_row(row.name, row.what, str(row.images), str(row.classes), row.licence, row.where)
    console.print(table)


@data_app.command("check")
def data_check(
    path: Annotated[
        str, typer.Argument(help="File, folder or manifest of CT volumes, folder of pictures, or data set name.")
    ],
    data_arg: Annotated[
        list[str] | None,
        typer.Option("--data-arg", help="KEY=VALUE as `run` takes it or a job has it: classes, patient, size, ..."),
    ] = None,
) -> None:
    """Say in words whether data can be used. Exit code 1 if not."""
    from medpfl.data.check import check
    from medpfl.report.terminal import print_findings

    if not print_findings(check(path, key_values(data_arg, "--data-arg")), console):
        raise typer.Exit(1)


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="A data set of `medpfl data list`.")],
    size: Annotated[int, typer.Option(help="Edge length in pixels: 28, 64, 128 or 224.")] = 28,
) -> None:
    """Download a data set once and check it."""
    from rich.progress import Progress

    from medpfl.data.kinds.npz.download import prepare

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"Fetching {name}", total=None)
        path = prepare(name, size, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(f"{path}", highlight=False, soft_wrap=True)


@data_app.command("phantom")
def data_phantom(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    patients: Annotated[int, typer.Option(help="In all six centres together.")] = 240,
    matrix: Annotated[int, typer.Option(help="Rows and columns of an image, 32 to 512.")] = 128,
    seed: Annotated[int, typer.Option(help="Another seed, other patients.")] = 0,
) -> None:
    """Write a chest CT cohort of six centres, made by the computer, as DICOM series to rehearse with."""
    from rich.progress import Progress

    from medpfl.data.phantom.cohort import make_phantom

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Scanning phantoms", total=patients)
        manifest = make_phantom(
            folder,
            patients=patients,
            matrix=matrix,
            seed=seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(f"{manifest}", highlight=False, soft_wrap=True)
