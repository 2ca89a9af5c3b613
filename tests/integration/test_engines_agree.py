"""The same run gives the same figures in this process and in FLARE's simulator, and the same bits when repeated."""

import json

import pytest
from agreement import assert_alike, assert_same_models, figures

ALGORITHMS = ["fedap", "fedimpres", "vit-heads", "fedbn", "local", "fedprox", "lg-fedavg", "d-fedap", "f-fedap"]
NEWER = ("scaffold", "ditto", "apfl", "fedrep", "fedbabu", "fedcurv", "fedreg", "vhl", "fedvss", "fedadam", "fedblend")
FEW_IMAGES = {"warmup": 1, "images": 20, "admm_iterations": 2}
CHANGES = {
    "fedimpres": {"model": "lenet5", "rounds": 3, "local_epochs": 1, "settings": FEW_IMAGES},
    "fedbn": {"names": ("north", "south")},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *NEWER])
def test_simulator_and_process_agree(small_run, algorithm):
    changes = CHANGES.get(algorithm, {})
    in_process, simulated = small_run(algorithm, "inprocess", **changes), small_run(algorithm, "sim", **changes)
    assert_alike(figures(in_process), figures(simulated))
    assert_same_models(in_process, simulated)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["inprocess", "sim"])
def test_same_bits_twice(small_run, env):
    first, second = small_run("fedap", env), small_run("fedap", env, repeat=1)
    assert figures(first) == figures(second)
    assert_same_models(first, second)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedbn", "f-fedap", "scaffold"])
def test_a_share_of_the_sites_in_each_round_is_the_same_in_both_engines(small_run, algorithm):
    changes = {"sites": 4, "participation": 0.5, "rounds": 4}
    in_process, simulated = (small_run(algorithm, env, **changes) for env in ("inprocess", "sim"))
    assert_alike(figures(in_process), figures(simulated))
    assert_same_models(in_process, simulated, sites=4)
    asked = [json.loads((run / "results.json").read_text())["rounds"] for run in (in_process, simulated)]
    assert [r["participants"] for r in asked[0]] == [r["participants"] for r in asked[1]]
    assert {len(r["participants"]) for r in asked[1]} == {len(r["following"]) for r in asked[1]} == {2}


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
