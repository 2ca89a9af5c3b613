import json
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock

from medpfl.config.run import make_config
from medpfl.runs.experiment import run_experiment

pytest.register_assert_rewrite("agreement")
SMALL = {"sites": 2, "rounds": 2, "train_fraction": 0.2, "seed": 3}


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, worker_id):
    """Runs an algorithm on the embedded sample, each combination once for all who test side by side; its folder."""
    root = tmp_path_factory.getbasetemp()
    root = (root if worker_id == "master" else root.parent) / "runs"
    root.mkdir(exist_ok=True)

    def run(algorithm: str, env: str, threads: int | None = None, repeat: int = 0, **changes) -> Path:
        key = json.dumps([algorithm, env, threads, repeat, changes], sort_keys=True)
        folder = root / f"{algorithm}-{env}-{sha256(key.encode()).hexdigest()[:8]}"
        with FileLock(f"{folder}.lock"):
            if not (done := folder.with_suffix(".done")).exists():
                config = make_config(algorithm=algorithm, **(SMALL | changes))
                run_experiment(config, folder, env=env, threads=threads, overwrite=True)
                done.touch()
        return folder

    return run
