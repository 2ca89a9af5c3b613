"""Methods, mechanisms, tasks and choices put together at random: figures are the models' own, or words say why not."""

import random

import numpy as np
import pytest

import medpfl
from medpfl.algorithms import algorithms

PARTS = {"train": 60, "val": 24, "test": 36}
TASKS = ("classification", "ordinal", "multi-label", "series", "segmentation", "vit")
SETTINGS = (
    {"ditto": 1}, {"mu": 0.1}, {"prior": 1}, {"fixed": 1}, {"head_epochs": 1}, {"alpha": 0.5}, {"control": 1},
    {"server_lr": 0.5}, {"curvature": 0.01}, {"pseudo": 1}, {"virtual": 1, "virtual_images": 8},
    {"adversarial": 0.1, "confident": 1}, {"finetune_epochs": 1}, {"finetune_steps": 3}, {"momentum": 0.9},
    {"optimizer": "adam", "lr": 0.003}, {"optimizer": "adam", "optimizer_state": "kept"}, {"grad_clip": 1.0},
    {"accumulate": 2}, {"schedule": "cosine"}, {"precision": "bf16"}, {"class_weights": "balanced"},
    {"sampling": "balanced"}, {"update_clip": 1.0},
)  # fmt: skip
OF_METHODS = {
    "fedimpres": {"warmup": 1, "images": 8, "admm_iterations": 1, "inner_steps": 2},
    "vhl": {"virtual_images": 8},
    "fedap": {"pretrain_epochs": 1},
    "d-fedap": {"pretrain_epochs": 1},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """By kind of labels an npz file of three sites, in which the brightness, or a bright square, tells them."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("files")
    found = {name: {} for name in ("class", "labels", "mask")}
    for part, n in PARTS.items():
        sites, noise = rng.choice(["north", "south", "west"], n), rng.normal(100, 20, (n, 28, 28))
        classes, labels = rng.integers(0, 4, n), rng.integers(-1, 2, (n, 3))
        masks = np.zeros((n, 28, 28), np.uint8)
        for mask, (row, column) in zip(masks, rng.integers(2, 18, (n, 2)), strict=True):
            mask[row : row + 8, column : column + 8] = rng.integers(1, 3)
        lit = {"class": classes[:, None, None], "labels": labels.clip(0)[:, :1, None], "mask": masks}
        told = {"class": {"labels": classes}, "labels": {"labels": labels}, "mask": {"masks": masks}}
        for name, of in found.items():
            pixels = (noise + 30.0 * lit[name]).clip(0, 255).astype(np.uint8)
            of |= {
                f"{part}_{what}": values for what, values in {"images": pixels, "sites": sites, **told[name]}.items()
            }
    for name, of in found.items():
        np.savez(folder / f"{name}.npz", **of)
    kinds = rng.integers(0, 3, 120)
    waves = np.sin(np.arange(40) * 0.3 * (1 + kinds[:, None, None])) + rng.normal(0, 1, (120, 2, 40))
    of_series = {"series": waves.astype(np.float32), "labels": kinds, "patients": np.arange(120) // 3}
    np.savez(folder / "series.npz", **of_series, sites=np.array(["x", "y", "z"])[np.arange(120) // 3 % 3])
    return folder


def fields(task, files):
    """Of a run with the task's data."""
    file = {"multi-label": "labels", "series": "series", "segmentation": "mask"}.get(task, "class")
    given = {"data": str(files / f"{file}.npz"), "partition": "natural"}
    match task:
        case "ordinal":
            given["task"] = "ordinal"
        case "segmentation":
            given |= {"data_args": {"classes": ["background", "a", "b"]}, "model_args": {"channels": [4, 8]}}
        case "vit":
            given["model"] = "vit-tiny"
    return given


def composed(draw, files):
    """A method and the options of a run, whether or not they go together."""
    task, method = draw.choice(TASKS), draw.choice(sorted(algorithms()))
    settings = {}
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        settings |= draw.choice(SETTINGS)
    asked = fields(task, files) | {"settings": settings | OF_METHODS.get(method, {})}
    asked |= {"rounds": draw.choice([1, 2]), "local_epochs": 1, "seed": draw.randrange(3)}
    maybe = {
        "use": ["best", "blend", "received"],
        "personal": ["nothing", "batch-norm", "any-batch-norm", "top:1", "below-top:1", "batch-norm+top:1"],
        "mixing": ["samples", "equal", "uniform", "median", "similarity", "similarity-running"],
        "held_out": ["1"],
        "augment": ["light", "strong:mr"],
        "select_by": ["loss"],
        "frozen": ["top:1"],
        "adapters": ["lora:2"],
    }
    return method, asked | {name: draw.choice(of) for name, of in maybe.items() if draw.random() < 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_what_a_run_says_of_its_models_they_do(number, files):
    draw = random.Random(number)
    for _ in range(20):
        method, asked = composed(draw, files)
        try:
            run = medpfl.run(method, **asked, quiet=True, device="cpu")
        except medpfl.UserError as error:
            assert "log says more" not in str(error), (method, asked)  # else nobody would know why
            continue
        break
    assert not run.results["failures"], (method, asked)
    for site, said in run.results["final"]["selected"]["sites"].items():
        judged = run.predictions(site)
        if "dice" in said:
            assert said["dice"] == pytest.approx(float(np.nanmean(np.nanmean(judged.dice, axis=1))), abs=1e-6)
            continue
        probabilities, labels = judged
        if labels.ndim == 2:
            right = ((probabilities > 0.5) == labels)[labels >= 0]
        else:
            right = probabilities.argmax(1) == labels
        assert (said["n"], said["accuracy"]) == (len(labels), pytest.approx(right.mean(), abs=1e-6)), (method, asked)
    assert run.report().read_text().count("<svg") >= 2
