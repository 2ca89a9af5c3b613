"""How many patients a site has for a job, by its own data, before it agrees."""

import numpy as np
import pytest

from medpfl.config.run import make_config
from medpfl.flare.admin import enough
from medpfl.flare.admin.enough import patients_here


@pytest.fixture
def own(tmp_path):
    """A site's file of 96 images."""
    arrays, rng = {}, np.random.default_rng(0)
    for part, n in (("train", 60), ("val", 12), ("test", 24)):
        arrays[f"{part}_images"] = rng.integers(0, 255, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(n)[:, None] % 11
    np.savez(tmp_path / "own.npz", **arrays)
    return tmp_path / "own.npz"


def test_what_only_a_simulation_may_name_is_not_opened(own, monkeypatch):
    """A job chooses the path, and a review comes before any consent."""
    opened = []
    monkeypatch.setattr(enough, "open_source", lambda *given: opened.append(given))
    config = make_config(algorithm="fedavg", sites=2, data="organamnist-sample", partition="file:/dev/zero")
    assert patients_here(own, "site-1", config) is None
    assert opened == []


def test_a_site_of_another_name_is_not_told_that_it_has_none(own):
    config = make_config(algorithm="fedavg", sites=2, data="organamnist-sample", partition="iid")
    assert patients_here(own, "north-hospital", config) is None
    assert patients_here(own, "site-1", config) == {"train": 24, "validation": 4, "test": 20}
