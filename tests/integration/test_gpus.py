"""A job that asks for GPUs: FLARE gives them by a site's resource manager, and the site's process sees those alone.

Where there is no GPU an nvidia-smi of the test's own lists two.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import Interrupted
from medpfl.core.site_data import ImageTensors
from medpfl.flare.launch.poc import poc, started
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.runs.real_sites import run_in_production

SEEN = "MEDPFL_TEST_SEEN"


def site_data(site: str, seed: int) -> ImageTensors:
    """A few images, and a note of the GPUs that the process may see."""
    Path(os.environ[SEEN], site).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    x = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    parts = ("train", "validation", "test")
    return ImageTensors(dict.fromkeys(parts, x), dict.fromkeys(parts, torch.arange(8) % 2))


SMI = """#!/bin/sh
case $1 in
*index) printf 'index\\n0\\n1\\n' ;;
*) printf 'memory [MiB]\\n4000 MiB\\n4000 MiB\\n' ;;
esac
"""


def give(kit: Path, gpus: int) -> None:
    """Lets a site's resource manager give its first GPUs; a job may take fewer."""
    file = kit / "local" / "resources.json"
    content = json.loads(file.read_text())
    [manager] = [c for c in content["components"] if c["id"] == "resource_manager"]
    manager["path"] = "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager"
    manager["args"] = {"num_of_gpus": gpus, "mem_per_gpu_in_GiB": 0, "ignore_host": gpus > 1}
    if not any(c["id"] == "resource_consumer" for c in content["components"]):
        path = "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"
        content["components"].append({"id": "resource_consumer", "path": path, "args": {}})
    file.write_text(json.dumps(content))


NAMES = ("site-1", "site-2")


@contextmanager
def two_sites(folder: Path, *gpus: int) -> Iterator[tuple[Path, Path]]:
    """A POC of two sites that give so many GPUs; its admin's kit, and the folder of what the sites' processes saw."""
    (folder / "seen").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        patch.setenv(SEEN, str(folder / "seen"))
        with poc(folder / "poc", NAMES) as system:
            kits = system.folder.parent
        for name, number in zip(NAMES, gpus, strict=True):
            give(kits / name, number)
        rehearsal = {name: {REHEARSAL: "1"} for name in ("server", *NAMES)}
        with started(system.folder, kits / "server", [kits / name for name in NAMES], rehearsal):
            yield system.folder, folder / "seen"


def job(device: str) -> RunConfig:
    """A round of both."""
    return make_config(
        algorithm="fedavg", data=f"{Path(__file__).stem}:site_data", model="lenet5", sites=2, rounds=1, device=device,
        model_args={"in_channels": 1, "num_classes": 2},
    )  # fmt: skip


def given(seen: Path) -> dict[str, str]:
    """The GPUs that each site's process saw."""
    return {file.name: file.read_text() for file in seen.iterdir()}


@pytest.mark.slow
def test_sites_see_the_gpus_that_they_were_given(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with two_sites(tmp_path, 1, 2) as (kit, seen):
        results = run_in_production(job("auto"), tmp_path / "run", kit=kit, gpus=1)
        assert results["status"] == "finished" and not results["failures"]
        assert given(seen) == {"site-1": "0", "site-2": "0"}

        def stop(now):
            if now.note:
                notes.append(now.note)
                raise KeyboardInterrupt

        notes = []
        with pytest.raises(Interrupted):
            run_in_production(job("auto"), tmp_path / "more", kit=kit, gpus=2, watch=stop)
        assert notes == ["not enough sites have enough resources (ok sites 1 < min sites 2)"]


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_sites_train_on_the_gpu_that_they_were_given(tmp_path):
    with two_sites(tmp_path, 1, 1) as (kit, seen):
        results = run_in_production(job("cuda"), tmp_path / "run", kit=kit, gpus=1)
    assert results["status"] == "finished" and not results["failures"]
    assert given(seen) == {"site-1": "0", "site-2": "0"}
