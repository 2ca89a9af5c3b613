"""A job that asks for GPUs: FLARE gives them by a site's resource manager, and the site's process sees those alone.

No GPU is needed: an nvidia-smi of the test's own lists two.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted
from medpfl.core.site_data import ImageTensors
from medpfl.flare.launch.poc import poc, started
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


@pytest.mark.slow
def test_sites_see_the_gpus_that_they_were_given(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv(SEEN, str(tmp_path / "seen"))
    monkeypatch.setenv("MEDPFL_REHEARSAL", "1")
    for name in ("seen", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    names = ("site-1", "site-2")
    with poc(tmp_path / "poc", names) as system:
        kits = system.folder.parent
    for name, gpus in zip(names, (1, 2), strict=True):
        give(kits / name, gpus)
    config = make_config(
        algorithm="fedavg", data=f"{Path(__file__).stem}:site_data", model="lenet5", sites=2, rounds=1, device="auto",
        model_args={"in_channels": 1, "num_classes": 2},
    )  # fmt: skip
    with started(system.folder, kits / "server", [kits / name for name in names]):
        results = run_in_production(config, tmp_path / "run", kit=system.folder, gpus=1)
        assert results["status"] == "finished" and not results["failures"]
        given = {file.name: file.read_text() for file in (tmp_path / "seen").iterdir()}
        assert given == {"site-1": "0", "site-2": "0"}

        def stop(now):
            if now.note:
                notes.append(now.note)
                raise KeyboardInterrupt

        notes = []
        with pytest.raises(Interrupted):
            run_in_production(config, tmp_path / "more", kit=system.folder, gpus=2, watch=stop)
        assert notes == ["not enough sites have enough resources (ok sites 1 < min sites 2)"]
