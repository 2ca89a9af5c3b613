"""What all tests share: the command line, an environment that ends with its test, and a budget of time."""

import functools
import gc
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import hypothesis
import pytest
import typer.main
import typer.testing

# Tests run side by side, and networks this small only wait for more threads; the processes of a test inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says what else the machine does.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

_began = time.monotonic()

# What is imported and collected lives to the end: to look through it for garbage again and again takes a tenth of all.
gc.disable()

# A process calls one command as a rule; here the tree of all would be made again for each.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, metavar="SECONDS", help="begin no test after so many seconds")


@pytest.hookimpl(tryfirst=True)  # before the test's fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _began > budget:
        pytest.skip(f"not run: the budget of {budget:.0f} s was used up")


def _restored() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


# What a recipe sets for the processes of a simulation or POC is not for those of a later test.
_environment = pytest.fixture(autouse=True)(_restored)
_environment_of_module = pytest.fixture(autouse=True, scope="module")(_restored)


def _in_this_process(arguments: list[str], cwd: Path | None, env: dict[str, str] | None) -> tuple[int, str, str]:
    from medpfl.cli.main import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["medpfl", *arguments])
        if cwd is not None:
            patch.chdir(cwd)
        for name in os.environ.keys() - env.keys() if env is not None else ():
            patch.delenv(name)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="session")
def medpfl():
    """Calls the command line: in this process, which has imported what another would spend seconds on, or in its own.

    ``medpfl(*arguments, check=True, cwd=None, env=None, own=False)`` returns a completed process.
    """

    def call(*arguments: object, check: bool = True, cwd=None, env=None, own=False) -> subprocess.CompletedProcess:
        words = [str(argument) for argument in arguments]
        if own:
            command = [sys.executable, "-m", "medpfl.cli.main", *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=cwd, env=env)
        else:
            done = subprocess.CompletedProcess(words, *_in_this_process(words, cwd, env))
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return call
