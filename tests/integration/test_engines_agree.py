"""The same run gives the same figures in this process and in FLARE's simulator, and the same bits when repeated."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

FIGURES = ("rounds", "final", "selected_round", "selected_rounds", "selection", "mixing", "traffic", "failures", "new")
FIGURES += ("heads",)


def figures(folder: Path) -> dict:
    """What a run computed, without how long it took."""
    results = json.loads((folder / "results.json").read_text())
    assert results["status"] == "finished"
    kept = {key: results.get(key) for key in (*FIGURES, "verdict", "reference")}
    for record in kept["rounds"]:
        del record["seconds"]
        record.get("impression", {}).pop("seconds", None)
        for site in record["sites"].values():
            del site["seconds"]
    return kept


def flat(value, path=()):
    """Every leaf of nested JSON with its path."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in flat(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in flat(inner, (*path, i))]
    return [(path, value)]


def models(folder: Path) -> dict:
    return {file.stem: load_file(file) for file in sorted((folder / "models").glob("*.safetensors"))}


def assert_same_models(first: Path, second: Path) -> None:
    ours, theirs = models(first), models(second)
    assert ours.keys() == theirs.keys()
    assert len(ours) == 2
    for site, state in ours.items():
        assert state.keys() == theirs[site].keys()
        for name, tensor in state.items():
            assert tensor.equal(theirs[site][name]), (site, name)


ALGORITHMS = ["fedap"]
ALGORITHMS += [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("fedimpres", "vit-heads", "fedbn", "local", "fedprox", "lg-fedavg", "d-fedap", "f-fedap")
]
NEWER = ("scaffold", "ditto", "apfl", "fedrep", "fedbabu", "fedcurv", "fedreg", "vhl", "fedvss", "fedblend")
ALGORITHMS += [pytest.param(name, marks=pytest.mark.slow) for name in NEWER]
FEW_IMAGES = {"warmup": 1, "images": 20, "admm_iterations": 2}
CHANGES = {
    "fedimpres": {"model": "lenet5", "rounds": 3, "local_epochs": 1, "settings": FEW_IMAGES},
    "fedbn": {"names": ("north", "south")},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_simulator_and_process_agree(small_run, algorithm):
    changes = CHANGES.get(algorithm, {})
    in_process, simulated = small_run(algorithm, "inprocess", **changes), small_run(algorithm, "sim", **changes)
    for (path, here), (other, there) in zip(flat(figures(in_process)), flat(figures(simulated)), strict=True):
        assert path == other
        assert here == (pytest.approx(there, abs=1e-6) if isinstance(there, float) else there), path
    assert_same_models(in_process, simulated)


@pytest.mark.parametrize("env", ["inprocess", pytest.param("sim", marks=pytest.mark.slow)])
def test_same_bits_twice(small_run, env):
    first, second = small_run("fedap", env), small_run("fedap", env, repeat=1)
    assert figures(first) == figures(second)
    assert_same_models(first, second)


def test_seeds_differ(small_run):
    assert figures(small_run("fedap", "inprocess")) != figures(small_run("fedap", "inprocess", seed=4))


@pytest.mark.slow
def test_fewer_threads_than_sites_give_the_same(small_run):
    # One thread for two sites: FLARE runs every task in a fresh process, so all personal state comes from disk.
    shared, alone = small_run("fedap", "sim"), small_run("fedap", "sim", threads=1)
    assert figures(shared) == figures(alone)
    assert_same_models(shared, alone)


TRAINED = {"optimizer": "adam", "lr": 0.001, "schedule": "cosine", "lr_warmup": 1, "optimizer_state": "kept"}


@pytest.mark.slow
def test_adam_kept_with_a_schedule_and_augmentation_is_the_same_in_both_engines(small_run):
    changes = {"settings": TRAINED, "augment": "light", "rounds": 3}
    in_process, simulated = (small_run("fedbn", env, **changes) for env in ("inprocess", "sim"))
    assert figures(in_process) == figures(simulated)
    assert_same_models(in_process, simulated)
    assert figures(in_process) != figures(small_run("fedbn", "inprocess", rounds=3))


NOISY = {"statistics_epsilon": 5, "update_clip": 1, "update_noise": 0.01}


@pytest.mark.slow
def test_noise_of_differential_privacy_is_the_same_in_both_engines(small_run):
    in_process, simulated = (small_run("fedap", env, settings=NOISY) for env in ("inprocess", "sim"))
    accounts = [json.loads((run / "results.json").read_text())["privacy"] for run in (in_process, simulated)]
    assert accounts[0] == accounts[1]
    assert accounts[0].keys() == {"statistics", "updates"}
    assert figures(in_process) == figures(simulated)
    assert_same_models(in_process, simulated)
    assert figures(in_process) != figures(small_run("fedap", "inprocess"))
