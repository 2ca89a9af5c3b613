from pathlib import Path

import pytest

REAL = Path(__file__).parents[5] / "shared" / "data" / "lidc-ct"


@pytest.fixture(scope="session")
def lidc() -> list[Path]:
    """Folders of real CT series, where they lie beside the project."""
    if not REAL.is_dir():
        pytest.skip("real CT: put lidc-ct beside the clone as ../shared/data/lidc-ct")
    return sorted(folder for folder in REAL.iterdir() if folder.is_dir())
