import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory):
    """The startup kits that FLARE makes of the project in app_config."""
    folder = tmp_path_factory.mktemp("provision")
    command = [Path(sys.executable).with_name("nvflare"), "provision", "-p", ROOT / "app_config" / "project.yml"]
    done = subprocess.run([*command, "-w", folder], capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "medpfl" / "prod_00"


@pytest.fixture
def kit(provisioned, tmp_path):
    """A fresh copy of a hospital's kit."""
    return Path(shutil.copytree(provisioned / "north-hospital", tmp_path / "kit"))


@pytest.fixture
def at_site():
    """The context that FLARE gives an executor at a site: its name, its workspace, and the scope of its policy."""

    class Engine:
        def __init__(self, workspace):
            self.get_workspace = lambda: workspace
            self.fire_event = lambda event, fl_ctx: None

    def context(folder: Path, name: str = "north-hospital") -> FLContext:
        (folder / "startup").mkdir(exist_ok=True)
        (folder / "local").mkdir(exist_ok=True)
        workspace = Workspace(str(folder))
        found = FLContext()
        found.set_prop(ReservedKey.IDENTITY_NAME, name)
        found.set_prop(ReservedKey.RUN_NUM, "job")
        found.set_prop(ReservedKey.ENGINE, Engine(workspace), private=True)
        scope = create_privacy_manager(workspace, names_only=False).get_scope("")
        found.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True)
        return found

    return context


@pytest.fixture
def blood(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"{p}_images": rng.integers(0, 256, (6, 8, 8), dtype=np.uint8) for p in ("train", "val", "test")}
    labels = {f"{p}_labels": np.arange(6) % 2 for p in ("train", "val", "test")}
    np.savez(tmp_path / "blood.npz", **arrays, **labels)
    return tmp_path / "blood.npz"
