"""On a GPU runs train, mix, deliver and go on as on the CPU, with its figures but for rounding. Skipped without one."""

import json
from pathlib import Path

import pytest
import torch
from agreement import assert_same_models, figures, models

from medpfl.algorithms import algorithms
from medpfl.config.run import make_config
from medpfl.core.errors import Interrupted
from medpfl.core.permitted_code import permit
from medpfl.core.site_data import ImageTensors, SiteLoaders
from medpfl.runs.experiment import run_experiment

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

QUICK = ("fedblend", "fedap", "ditto")
ON = {"device": "cuda", "rounds": 2}
FEW_IMAGES = {"warmup": 1, "images": 20, "admm_iterations": 2}
CHANGES = {
    "fedimpres": {"model": "lenet5", "local_epochs": 1, "settings": FEW_IMAGES},
    "vhl": {"settings": {"virtual_images": 8}},
}
MASKS = {
    "data": "sarcoma-sample",
    "task": "segmentation",
    "partition": "natural",
    "sites": 3,
    "rounds": 1,
    "train_fraction": 0.3,
    "model_args": {"channels": [4, 8], "num_res_units": 0},
    "settings": {"optimizer": "adam", "lr": 0.01},
}


def losses(folder):
    """Training losses by round and site."""
    rounds = json.loads((folder / "results.json").read_text())["rounds"]
    return {(i, site): of["train_loss"] for i, record in enumerate(rounds) for site, of in record["sites"].items()}


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    """Convolutions in float32 rather than TF32, so that only the order of sums differs from the CPU's."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize(
    "algorithm",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted(algorithms())],
)
def test_methods_have_the_losses_of_the_cpu(small_run, algorithm):
    changes = {"rounds": 2} | CHANGES.get(algorithm, {})
    here, there = (small_run(algorithm, "inprocess", **changes | {"device": device}) for device in ("cpu", "cuda"))
    assert losses(there) == pytest.approx(losses(here), rel=0.02)
    assert not figures(there)["failures"]


@pytest.mark.parametrize("algorithm", ["fedblend", "vit-heads", "fedap", "scaffold"])
def test_the_same_seed_gives_the_same_bits(small_run, algorithm):
    first, second = (small_run(algorithm, "inprocess", repeat=n, **ON) for n in (0, 1))
    assert figures(first) == figures(second)
    assert_same_models(first, second)


@pytest.mark.parametrize("augment", ["none", "light:mr"])
def test_masks_have_the_losses_of_the_cpu(small_run, augment):
    here, there = (
        small_run("fedbn", "inprocess", **MASKS | {"augment": augment, "device": device}) for device in ("cpu", "cuda")
    )
    # Noise is drawn where the images are.
    assert losses(there) == pytest.approx(losses(here), rel=0.02 if augment == "none" else 0.2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(small_run, precision):
    settings = {"precision": precision, "channels_last": 1}
    whole, half = (
        small_run("fedavg", "inprocess", **ON | {"settings": chosen, "model": "resnet32"}) for chosen in ({}, settings)
    )
    assert losses(half) == pytest.approx(losses(whole), rel=0.1)
    assert losses(half) != losses(whole)
    assert {tensor.dtype for state in models(half).values() for tensor in state.values()} <= {
        torch.float32,
        torch.int64,
    }


def test_models_are_delivered_for_any_device(small_run):
    folder = small_run("fedap", "inprocess", **ON)
    for state in models(folder).values():
        assert {tensor.device.type for tensor in state.values()} == {"cpu"}


def test_a_run_on_a_gpu_goes_on_without_one(tmp_path):
    """A run that was interrupted on one device ends on the other."""
    config = make_config(algorithm="fedap", sites=2, rounds=3, train_fraction=0.2, device="cuda")

    def stop(progress):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run_experiment(config, tmp_path / "run", env="inprocess", threads=1, watch=stop)
    moved = config.model_copy(update={"device": "cpu"})
    run_experiment(moved, tmp_path / "run", env="inprocess", threads=1, resume=True)
    whole = run_experiment(config, tmp_path / "whole", env="inprocess", threads=1)
    assert len(whole["rounds"]) == 3
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=0.02)


def own_images(site, seed, loaders=False, wrong="site-2"):
    """A few random images, of which one site has a label without an output."""
    draw = torch.Generator().manual_seed(seed + int(site[-1]))
    x, y = torch.randn(12, 1, 28, 28, generator=draw), torch.arange(12) % 2
    y[7] += 9 * (site == wrong)
    parts = ("train", "validation", "test")
    if loaders:
        return SiteLoaders(**{part: list(zip(x.split(4), y.split(4), strict=True)) for part in parts})
    return ImageTensors(dict.fromkeys(parts, x), dict.fromkeys(parts, y))


@pytest.mark.parametrize("loaders", [False, True])
def test_a_label_without_an_output_costs_its_site_alone(tmp_path, loaders):
    permit(Path(__file__).stem)
    config = make_config(
        algorithm="fedbn", data=f"{Path(__file__).stem}:own_images", data_args={"loaders": loaders}, model="lenet5",
        model_args={"in_channels": 1, "num_classes": 2}, sites=3, min_sites=2, rounds=2, device="cuda",
    )  # fmt: skip
    results = run_experiment(config, tmp_path / "run", env="inprocess", threads=1)
    assert {failure["site"] for failure in results["failures"]} == {"site-2"}
    assert {failure["reason"] for failure in results["failures"]} == {
        "a label lies outside 0 to 1: the model has 2 outputs"
    }
    assert {"site-1", "site-3"} <= results["final"]["selected"]["sites"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedap", "fedblend", "fedimpres"])
def test_simulator_and_process_agree(small_run, algorithm):
    changes = ON | CHANGES.get(algorithm, {})
    here, there = (small_run(algorithm, env, **changes) for env in ("inprocess", "sim"))
    assert losses(there) == pytest.approx(losses(here), rel=1e-3)  # the simulator's processes have TF32
    assert not figures(there)["failures"]
