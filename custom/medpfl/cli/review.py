"""``medpfl site review`` and ``medpfl site ledger``: what a job would do at a site, and what has left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from medpfl.core.errors import printable


def review(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job's folder, as the coordinator sent it.")],
    kit: Annotated[
        Path | None, typer.Option(help="The site's kit, for its policy; else a hospital's defaults.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a job would do here, before anybody consents: classes, network, what leaves, how often, what it reveals.

    Nothing of the job is run. Exit code 1 if the site's policy refuses it.
    """
    from medpfl.flare.admin.review import not_for, require_job
    from medpfl.flare.admin.review import review as read
    from medpfl.site.local_file import local_of, read_policy
    from medpfl.site.policy import HOSPITAL

    local = None if kit is None else local_of(kit)
    policy = HOSPITAL if local is None else read_policy(local, rehearsal=False)
    found = read(require_job(job), policy.network, local)
    notes = not_for(found, kit) if kit else []
    if as_json:
        print(json.dumps(found.to_json(policy) | {"notes": notes}, indent=1))
    else:
        for line in (*found.lines(policy), *(f"but {note}" for note in notes)):
            print(printable(line).replace("\n", "\\n"))  # no name in a job begins a line that looks like ours
    if found.refusals(policy):
        raise typer.Exit(1)


def ledger(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit: the folder with startup/ and local/.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
    forget: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Let the training patients of later runs on the data set NAME differ by few from earlier runs': two "
            "updates may then tell of these.",
        ),
    ] = None,
) -> None:
    """Show for what this site opened its data, and what has left it; verify that no entry was changed or lost.

    Exit code 1 if the ledger is not as the site wrote it; the entries before the break are shown.
    """
    from medpfl.core.numbers_in_words import size
    from medpfl.site.account import OPEN
    from medpfl.site.ledger import open_ledger
    from medpfl.site.local_file import local_of
    from medpfl.site.seal import SealBroken, read_key
    from medpfl.site.training_sets import open_training_sets

    folder, key = kit / "medpfl", read_key(local_of(kit))
    opened = open_ledger(folder, key)
    sets = open_training_sets(folder, opened.seal.key)
    number = total = 0
    try:
        for entry in opened.entries():
            number, total = entry["n"], total + entry["bytes"]
            if as_json:
                print(json.dumps(entry))
                continue
            what = f"{len(entry['tensors'])} tensors, {size(entry['bytes'])}" if entry["tensors"] else "numbers"
            what = "the data are opened" if entry["task"] == OPEN else what
            what = f"refused: {entry['refused']}" if "refused" in entry else what
            asked, whose = f"{entry['task']} {entry['round']}", entry["submitter"] or "-"
            parts = (entry["time"], entry["data"], asked, what, f"contract {entry['contract'][:12]}", whose)
            parts += (f"job {entry['job']}", f"experiment {entry['experiment']}")
            print(printable("  ".join(" ".join(part.split()) for part in parts)))
        forgotten = sets.forget(forget) if forget else 0
        held = sets.sizes()
    except SealBroken as error:
        typer.echo(f"broken: {error}", err=True)
        raise typer.Exit(1) from None
    if forget and not forgotten:
        there = f"; there are sets of {', '.join(held)}" if held else ""
        typer.echo(f"{forget}: no training patients of earlier runs are kept{there}", err=True)
        raise typer.Exit(1)
    if as_json:
        return
    print(f"{number} {'entry' if number == 1 else 'entries'}, {size(total)} in all; the chain is whole")
    if forgotten:
        print(printable(f"{forget}: forgotten on whom {forgotten} earlier series of runs trained"))
    for data, patients in held.items():
        of = ", ".join(map(str, patients))
        print(printable(f"{data}: later runs train on the same patients as earlier ones (of {of}) or on many others"))
