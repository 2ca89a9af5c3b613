"""What the command line adds to FLARE's simulator and POC."""

import errno
import json
import threading

import pytest
import torch

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.engine.progress import Progress
from medpfl.flare.launch.simulator import LoggedSimEnv, _follow, _where_there_is_room


def test_a_full_temporary_folder_is_named(tmp_path):
    class Full:
        name = "fedbn"

        def export_job(self, folder):
            raise OSError(errno.ENOSPC, "No space left on device")

    env = LoggedSimEnv(tmp_path / "flare.log", clients=["site-1"], num_threads=1, workspace_root=tmp_path)
    with pytest.raises(UserError, match=r"^/.*: the job cannot be written: No space left on device; TMPDIR names"):
        env.deploy(Full())


@pytest.mark.parametrize(
    ("device", "threads", "said"),
    [("auto", 3, "auto"), ("auto", 20, "cpu"), ("cuda", 20, "cuda"), ("cpu", 20, "cpu")],
)
def test_sites_that_a_gpu_has_no_room_for_train_on_the_cpu(monkeypatch, caplog, device, threads, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5 << 30, 8 << 30))
    config = make_config(algorithm="fedavg", device=device)
    assert _where_there_is_room(config, threads).device == said
    warned = "20 sites at once take 11.7 GiB of a GPU or more, and 5.0 GiB are free: they train on the CPU"
    assert (warned in caplog.text) == (device != said)


def test_of_a_gpu_that_cannot_be_used_the_sites_say_why(monkeypatch):
    def busy():
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    assert _where_there_is_room(make_config(algorithm="fedavg", device="auto"), 20).device == "auto"


def test_after_the_last_round_sites_test(tmp_path):
    """The server of a simulation tells its rounds by its results alone."""
    results, ended, said = tmp_path / "results.json", threading.Event(), []

    def finished(rounds):
        results.with_suffix(".part").write_text(json.dumps({"rounds": [{}] * rounds}))
        results.with_suffix(".part").rename(results)

    def watch(now):
        said.append(now)
        finished(now.round + 1) if now.round < 2 else ended.set()

    finished(1)
    _follow(results, 2, watch, ended)
    assert said == [Progress("train", 1), Progress("test", 2)]
