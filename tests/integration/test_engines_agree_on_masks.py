"""Segmentation gives the same figures in this process, in FLARE's simulator and between processes with TLS."""

import pytest
from agreement import assert_alike, figures
from safetensors.torch import load_file

from medpfl.config.run import make_config
from medpfl.flare.launch.poc import poc
from medpfl.runs.experiment import run_experiment
from medpfl.runs.real_sites import run_in_production

CONFIG = make_config(
    algorithm="fedbn",
    data="sarcoma-sample",
    task="segmentation",
    partition="natural",
    sites=3,
    rounds=1,
    train_fraction=0.3,
    model_args={"channels": [4, 8], "num_res_units": 0},
    settings={"optimizer": "adam", "lr": 0.01, "schedule": "cosine"},
    augment="light:mr",
    use="blend",
)


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segmentation") / "here"
    return folder, run_experiment(CONFIG, folder, env="inprocess", threads=1)


@pytest.mark.slow
def test_a_site_sees_its_cases_and_they_make_its_figures(in_process):
    _, results = in_process
    for site, detail in results["detail"].items():
        dice = [case["dice"] for case in detail["cases"]]
        measured = results["final"]["selected"]["sites"][site]
        assert len(dice) == measured["n"]
        assert sum(dice) / len(dice) == pytest.approx(measured["dice"])
        assert [p["which"] for p in detail["pictures"]] == ["best", "median", "worst"]


@pytest.mark.slow
def test_simulator_and_process_agree(in_process, tmp_path):
    folder, _ = in_process
    run_experiment(CONFIG, tmp_path / "sim", env="sim")
    assert_alike(figures(folder), figures(tmp_path / "sim"))
    for file in (folder / "models").glob("*.safetensors"):
        ours, theirs = load_file(file), load_file(tmp_path / "sim" / "models" / file.name)
        assert all(ours[name].equal(theirs[name]) for name in ours | theirs)


@pytest.mark.slow
def test_poc_and_process_agree(in_process, tmp_path):
    _, here = in_process
    with poc(tmp_path / "poc", CONFIG.site_names) as system:
        there = run_in_production(CONFIG, tmp_path / "run", kit=system.folder)
    assert not there["failures"]
    assert "detail" not in there  # cases and pictures stay at the sites
    assert_alike(here["final"], there["final"])
    assert_alike(here["verdict"], there["verdict"])
