import json
import subprocess
import sys
from pathlib import Path

import pytest

from medpfl.config import make_config
from medpfl.experiment import run_experiment

SMALL = {"sites": 2, "rounds": 2, "train_fraction": 0.2, "seed": 3}


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """Runs an algorithm on the embedded sample, each combination once; returns its folder."""
    made: dict[str, Path] = {}

    def run(algorithm: str, env: str, threads: int | None = None, repeat: int = 0, **changes) -> Path:
        key = json.dumps([algorithm, env, threads, repeat, changes], sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp(f"{algorithm}-{env}")
            config = make_config(algorithm=algorithm, **(SMALL | changes))
            run_experiment(config, made[key], env=env, threads=threads, reference=False)
        return made[key]

    return run


@pytest.fixture(scope="session")
def medpfl():
    """The command line in a process of its own."""

    def call(*arguments: str | Path, check: bool = True, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "medpfl.cli", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, **options)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return call
