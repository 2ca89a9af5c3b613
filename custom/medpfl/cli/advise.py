"""``medpfl advise``: before training, what our benchmarks found where sites' numbers were like these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medpfl.cli import options as opt
from medpfl.cli.consoles import console, say
from medpfl.cli.flags import written
from medpfl.config.fields import DATA, OPTIONS, flag_of
from medpfl.core.errors import UserError
from medpfl.core.settings import extra

if TYPE_CHECKING:
    from medpfl.config.run import RunConfig
    from medpfl.report.advice.known import Measure

_TAKEN = {"data", "sites", "seed", "task", *(name for name, field in OPTIONS.items() if extra(field, "panel") == DATA)}
_OTHERS = tuple(name for name in OPTIONS if name not in _TAKEN)


@opt.takes_options(*_OTHERS)
def advise(
    options: opt.Options,
    counts: Annotated[
        Path | None,
        typer.Option(
            help="What the sites tell, in place of data: CSV with columns site, train, validation, test and "
            "class:NAME, or JSON (with --task, unless it is classification); or the folder of a run.",
            show_default=False,
        ),
    ] = None,
    shift: Annotated[
        bool | None,
        typer.Option(
            help="The same class looks different from site to site (scanner, stain, protocol), or alike.",
            show_default="not known; alike where one data set is divided",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=written("--json"),
            metavar="FILE",
            help="Write the answer for programs too.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say before training what regime the sites' numbers are, and what did best in such regimes of our benchmarks.

    Nothing is trained: numbers of samples are all that is used, and numbers by class where sites tell them.
    """
    from medpfl.core.whole_file import write_text
    from medpfl.report.advice.answer import answers
    from medpfl.report.advice.counts import read_counts
    from medpfl.report.advice.known import OtherTask, measured
    from medpfl.report.advice.numbers import features_of, require_classes
    from medpfl.report.advice.regimes import shipped
    from medpfl.report.advice.words import advice_to_json, print_advice

    def write(content: dict[str, Any]) -> None:
        if to is None:
            return
        if counts is not None and counts.exists() and to.exists() and to.samefile(counts):
            raise UserError(f"--json {to}: has the counts that were read; choose another file")
        try:
            write_text(to, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--json {to}: cannot be written: {error.strerror}") from None

    notes: list[str] = []
    try:
        if counts is not None:
            task = options.line["task"]
            said = [flag_of(n) for n, value in options.line.items() if n != "task" and value not in (None, {})]
            if said := [*said, *(["--preset"] if options.preset else [])]:
                raise UserError(f"{said[0]} has no meaning with --counts, which has the numbers; leave one of them out")
            sites, measure, dealt = read_counts(counts)
            if task and measure and measured(task) != measure:
                raise UserError(f"--task {task}: {counts} is a run of another task; leave --task out")
            measure = measure or measured(task or "classification")
        else:
            from medpfl.runs.numbers import numbers_of  # which loads torch; numbers alone need none

            config, measure = _of_options(options)
            sites, dealt, notes = numbers_of(config)
    except OtherTask as reason:
        write({"schema": 2, "notes": [str(reason)], "answers": []})
        console.print(str(reason), highlight=False, markup=False)
        return
    shift = dealt if shift is None else shift
    if measure == "accuracy":
        require_classes(sites)
    else:  # a mask may have several, whose numbers tell no share: no regime of masks has a label skew
        sites = [site._replace(classes=None) for site in sites]
    features, known = features_of(sites, shift), shipped()
    found = answers(features, known.of(measure))
    write(advice_to_json(sites, features, found, notes, known))
    print_advice(sites, features, found, notes, console)
    if to is not None:
        say(f"JSON: {to}")


def _of_options(options: opt.Options) -> tuple[RunConfig, Measure]:
    """A run with these data, and what was measured of its task; OtherTask if benchmarks say nothing of it."""
    from medpfl.algorithms import DEFAULT
    from medpfl.report.advice.known import measured

    config = options.of_a_run().config(DEFAULT)  # a preset says more than its data; it is read and not used
    if config.sites < 2:
        raise UserError("--sites 1: a federation has two sites or more")
    return config, measured(config.task)
