"""The command line. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from medpfl.cli.advise import advise
from medpfl.cli.compare import compare, report
from medpfl.cli.consoles import aside, say
from medpfl.cli.data import data_app
from medpfl.cli.lists import algorithms, models
from medpfl.cli.run import export, run
from medpfl.cli.site import site_app
from medpfl.core.errors import Interrupted, TornFile, UserError, printable, printably
from medpfl.core.stopping import at_work
from medpfl.core.version import __version__, version

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(site_app, name="site")
for command in (run, compare, export, report, advise, algorithms, models):
    app.command()(command)
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


def main() -> None:
    """Entry point. A user's mistake is a line on stderr and exit code 2, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the terminal's encoding lacks a sign, ? stands for it
    if logging.lastResort:  # by which warnings go to the terminal
        logging.lastResort.addFilter(printably)
    try:
        with _terminated_as_by_hand():
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
            if at_work():  # interrupted again: the end of the process would wait for it
                sys.stdout.flush()
                os._exit(_INTERRUPTED)
        raise


_AFTER_A_STOP = {
    "run": "stopped; the same command with --resume goes on from the last finished round",
    "compare": "stopped; the same command without --overwrite goes on from the last finished round",
}


@contextmanager
def _terminated_as_by_hand() -> Iterator[None]:
    """SIGTERM, by which schedulers stop what takes too long, ends a command as Ctrl-C does: nothing temporary stays."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say_wrong(words: str) -> None:
    aside.print(printable(f"medpfl: {words}"), style="red", highlight=False, markup=False, soft_wrap=True)


def _say_stopped(words: str) -> None:
    say(f"medpfl: {words}", aside)


if __name__ == "__main__":
    main()
