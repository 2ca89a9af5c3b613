import shutil
from pathlib import Path

import numpy as np
import pytest
from pictures import write_centres

from medpfl.data.dataset import ImageDataset
from medpfl.data.kinds.npz.npz_file import load


def _arrays(train=30, val=9, test=12, classes=3, shape=(8, 8), seed=0) -> dict[str, np.ndarray]:
    """The content of a small file in MedMNIST's format, classes in turn."""
    rng = np.random.default_rng(seed)
    content = {}
    for part, n in (("train", train), ("val", val), ("test", test)):
        content[f"{part}_images"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        content[f"{part}_labels"] = (np.arange(n) % classes).astype(np.uint8)[:, None]
    return content


@pytest.fixture
def arrays():
    return _arrays


@pytest.fixture
def write(tmp_path):
    def write(name="mine.npz", change=None, **sizes) -> Path:
        content = _arrays(**sizes) | (change or {})
        np.savez_compressed(tmp_path / name, **{k: v for k, v in content.items() if v is not None})
        return tmp_path / name

    return write


@pytest.fixture
def dataset(write) -> ImageDataset:
    return load(write(train=600, val=150, test=250, classes=5))


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """No data set of this machine is found; $MEDPFL_DATA and the cache are empty folders."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MEDPFL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder of pictures, not to be changed."""
    return write_centres(tmp_path_factory.mktemp("made") / "fundus")


@pytest.fixture
def fundus(made, home) -> Path:
    """A copy to spoil, and a cache of its own."""
    return shutil.copytree(made, home / "fundus")
