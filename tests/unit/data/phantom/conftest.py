from pathlib import Path

import pytest
from filelock import FileLock

from medpfl.data.phantom.cohort import make_phantom


@pytest.fixture(scope="session")
def cohort(tmp_path_factory, worker_id) -> Path:
    """The folder of a small cohort, made once for all who test side by side; not to be changed."""
    ours = tmp_path_factory.getbasetemp()
    folder = (ours if worker_id == "master" else ours.parent) / "phantom"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "manifest.json").exists():
            make_phantom(folder, patients=12, matrix=48, seed=1)
    return folder
