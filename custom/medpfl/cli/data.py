"""``medpfl data``: what data sets there are, whether data can be used, how to get some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from medpfl.cli.consoles import console, listing, say
from medpfl.cli.flags import written
from medpfl.cli.options import key_values
from medpfl.core.errors import UserError, printable

data_app = typer.Typer(
    help="Data sets: what there is, whether a file can be used, how to get one.", no_args_is_help=True
)
_MOST = 60
"""Rows of an inventory on the terminal."""


@data_app.command("list")
def data_list() -> None:
    """List the data sets and where they were found."""
    from medpfl.data.kinds.npz.catalog import rows

    table = listing("data set", "what", "images", "classes", "licence", "where")
    for row in rows():
        table.add_row(row.name, row.what, str(row.images or "–"), str(row.classes), row.licence, row.where)
    console.print(table)


@data_app.command("check")
def data_check(
    path: Annotated[
        str,
        typer.Argument(
            help="File, folder or manifest of CT or MR, folder of pictures, images with masks, series, or a set's name."
        ),
    ],
    data_arg: Annotated[
        list[str] | None,
        typer.Option("--data-arg", help="KEY=VALUE as `run` takes it or a job has it: classes, patient, size, ..."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every scan as training would, into its cache, and show its slices.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(parser=written("--page"), help="HTML file that --deep writes.", show_default="check.html"),
    ] = None,
) -> None:
    """Say in words whether data can be used. Exit code 1 if not."""
    from medpfl.data.check import check, check_deep
    from medpfl.report.terminal import print_findings

    arguments = key_values(data_arg, "--data-arg")
    if page and not deep:
        raise UserError("--page: is what --deep writes; add --deep")
    if not deep:
        found = check(path, arguments)
    else:
        page = page or Path("check.html")
        with _bar("Reading") as told:
            found = check_deep(path, page, arguments, told)
    good = print_findings(found, console)
    if page and page.is_file():
        say(f"{page}  what training will see; it shows patients' images")
    if not good:
        raise typer.Exit(1)


@data_app.command("inventory")
def data_inventory(
    path: Annotated[Path, typer.Argument(help="A folder, such as an export of the PACS. No table is needed.")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=written("--out"),
            help="Folder for inventory.csv, inventory.html with a thumbnail each, and labels.csv to fill in.",
        ),
    ] = None,
    dates: Annotated[bool, typer.Option("--dates", help="Say the dates of the studies too.")] = False,
    labels: Annotated[
        str, typer.Option(help="NAME,NAME: the table to fill in has a column for each, for several labels a scan.")
    ] = "",
) -> None:
    """List every series, volume and picture in a folder, whatever its state, and propose a label table."""
    from medpfl.data.kinds.scans.inventory import in_words, take_inventory
    from medpfl.data.kinds.scans.inventory_copies import with_copies
    from medpfl.data.kinds.scans.inventory_drawn import with_thumbnails
    from medpfl.data.kinds.scans.inventory_files import LABELS, cells, heads, require_no_tables, write_inventory

    names = list(filter(None, map(str.strip, labels.split(","))))
    if labels and not 1 < len(set(names)) == len(names):
        raise UserError(f"--labels {labels}: give two different names or more, divided by commas")
    if out is not None:
        require_no_tables(out)
    with _bar("Reading headers") as told:
        inventory = take_inventory(path, told)
    with _bar("Looking for copies") as told:
        inventory = with_copies(inventory, told)
    drawn = []
    if out is not None:
        with _bar("Drawing thumbnails") as told:
            drawn = with_thumbnails(inventory, told)
        inventory = replace(inventory, found=[one for one, _ in drawn])
    table = listing(*heads(dates, short=True))
    wrong = []
    for one in inventory.found[:_MOST]:
        table.add_row(*(Text(printable(cell)) for cell in cells(one, dates, short=True)))
        worst = sorted(one.reasons(), key=lambda reason: reason[0] != "error")[:1]
        wrong += [f"{one.place}: {words}" for _, words in worst]
    console.print(table)
    for line in wrong:
        say(printable(line))
    if (more := len(inventory.found) - _MOST) > 0:
        console.print(f"and {more:,} more; --out DIR writes all of them")
    for line in in_words(inventory):
        say(printable(line))
    if out is None:
        return
    written = write_inventory(out, inventory, drawn, names, dates)
    for file in written:
        say(file)
    console.print("They name patients and show images.")
    if drafts := " or ".join(file.name for file in written[2:]):
        said = f"Give each row of {drafts} a label, and copy it into {path} as {LABELS}."
        if any(one.masked for one in inventory.found):
            learned = f"To learn the masks copy nothing: `medpfl data check {path}` reads them."
            said = f"{learned} To classify the scans: {said}"
        if tables := [file.parent.name for file in sorted(path.glob(f"*/{LABELS}"))]:
            said += (
                f" Folders in it that have such a table already: {', '.join(tables)}; one in {path} itself makes one "
                "site of all."
            )
        say(printable(said))


@data_app.command("masks")
def data_masks(
    path: Annotated[Path, typer.Argument(help="One hospital's folder of CT or MR series as DICOM.")],
    structure: Annotated[
        list[str] | None,
        typer.Option(
            help="CLASS=NAME,NAME: what a class's structures are called, with * and ?; repeatable, 1 the first."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=written("--out"), help="A new or empty folder for the volumes and masks."),
    ] = None,
) -> None:
    """Make volumes with masks (NIfTI) of series and the RT structure sets or segmentations (DICOM) drawn on them.

    Without --structure it lists what is drawn, and on how many series.
    """
    from medpfl.data.structures.convert import Class, convert, find

    classes = [Class.parse(text) for text in structure or ()]
    if bool(classes) != bool(out):
        raise UserError(
            f"{'--out' if out else '--structure'}: the two go together; without both it lists what is drawn"
        )
    with _bar("Reading headers") as told:
        cohort = find(path, told)
    for line in cohort.wrong:
        say(printable(f"not used: {line}"))
    if out is None:
        table = listing("structure", "series")
        for name, number in sorted(cohort.names().items(), key=lambda pair: (-pair[1], pair[0])):
            table.add_row(Text(printable(name)), str(number))
        console.print(table)
        return
    with _bar("Writing") as told:
        made = convert(cohort, out, classes, told)
    for line in (*(f"left out: {line}" for line in made.left_out), *made.odd):
        say(printable(line))
    names = ",".join(["background", *(one.name for one in classes)])
    say(
        printable(
            f"{out}: {made.volumes:,} of {len(cohort.drawn):,}; medpfl data check {out} --data-arg classes={names}"
        )
    )


@contextmanager
def _bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal while something is read."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="A data set of `medpfl data list`.")],
    size: Annotated[int, typer.Option(help="Edge length in pixels: 28, 64, 128 or 224.")] = 28,
) -> None:
    """Download a data set once and check it."""
    from medpfl.data.kinds.npz.download import prepare

    with _bar(f"Fetching {name}") as told:
        path = prepare(name, size, told)
    say(path)


@data_app.command("phantom")
def data_phantom(
    folder: Annotated[Path, typer.Argument(parser=written("DIR"), metavar="DIR", help="A new or empty folder.")],
    patients: Annotated[int, typer.Option(help="In all six centres together.")] = 240,
    matrix: Annotated[int, typer.Option(help="Rows and columns of an image, 32 to 512.")] = 128,
    seed: Annotated[int, typer.Option(help="Another seed, other patients.")] = 0,
    masks: Annotated[
        bool, typer.Option("--masks", help="NIfTI volumes with masks of lung and emphysema, in place of DICOM.")
    ] = False,
) -> None:
    """Write a chest CT cohort of six centres, made by the computer, to rehearse with: DICOM series with classes.

    With --masks the same scans as NIfTI volumes, to segment.
    """
    from medpfl.data.phantom.cohort import make_phantom

    with _bar("Scanning phantoms") as told:
        manifest = make_phantom(folder, patients=patients, matrix=matrix, seed=seed, masks=masks, progress=told)
    say(manifest)
