from pathlib import Path

import pytest

from medpfl.data.phantom.cohort import make_phantom


@pytest.fixture(scope="session")
def cohort(tmp_path_factory) -> Path:
    """The folder of a small cohort; not to be changed."""
    return make_phantom(tmp_path_factory.mktemp("phantom") / "cohort", patients=12, matrix=48, seed=1).parent
