"""Sites that fail do not stop the others, and the results name them and say why."""

import json

import pytest
from faulty_sites import Net, Reshape, site_data, slow_site_data
from nvflare.recipe import SimEnv

from medpfl.flare.executor import TASKS
from medpfl.flare.recipes import FedBNRecipe


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("faults")
    recipe = FedBNRecipe(model=Net, data=site_data, sites=6, rounds=2, min_sites=2, name="faults")
    recipe.add_client_output_filter(Reshape(), tasks=list(TASKS))
    recipe.execute(SimEnv(num_clients=6, workspace_root=str(workspace)))
    return json.loads((workspace / "faults" / "server" / "simulate_job" / "results.json").read_text())


def test_others_finish(results):
    assert results["status"] == "finished"
    assert [r["participants"] for r in results["rounds"]] == [["site-1", "site-6"]] * 2
    assert {"site-1", "site-6"} <= set(results["final"]["selected"]["sites"])


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ("site-2", "OSError in task 'train' (the site's log says more)"),
        ("site-3", "the training loss became nan"),
        ("site-4", "shared entry 'fc.weight' has shape [2, 3], expected [2, 4]"),
        ("site-5", "entry 'norm.running_mean' does not belong to the shared state"),
    ],
)
def test_report_names_site_and_reason(results, site, reason):
    found = [f["reason"] for f in results["failures"] if f["site"] == site]
    assert len(found) >= 2  # in both rounds
    assert all(text.startswith(reason) for text in found[:2]), found


def test_no_path_or_patient_leaves(results):
    assert "patient" not in json.dumps(results)
    assert "archive" not in json.dumps(results)


@pytest.mark.parametrize(("limit", "value"), [("grace", 0.5), ("timeout", 8)])
def test_a_site_that_stops_answering_is_left_behind(tmp_path, limit, value):
    recipe = FedBNRecipe(model=Net, data=slow_site_data, sites=3, rounds=1, min_sites=2, name="slow", **{limit: value})
    recipe.execute(SimEnv(num_clients=3, workspace_root=str(tmp_path)))
    results = json.loads((tmp_path / "slow" / "server" / "simulate_job" / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["rounds"][0]["participants"] == ["site-1", "site-3"]
    assert {f["site"] for f in results["failures"]} == {"site-2"}
    assert results["failures"][0]["reason"] == "no answer in time"


def test_too_few_sites_end_the_run_with_a_reason(tmp_path):
    recipe = FedBNRecipe(
        model=Net, data=site_data, sites=3, rounds=2, min_sites=3, name="quorum", experiment="kept", state_dir=tmp_path
    )
    with pytest.raises(RuntimeError):
        recipe.execute(SimEnv(num_clients=3, workspace_root=str(tmp_path)))
    error = json.loads((tmp_path / "quorum" / "server" / "simulate_job" / "error.json").read_text())["error"]
    assert "the quorum is 3 of 3 sites" in error
    assert "site-2" in error
    assert (tmp_path / "kept" / "server" / "server.safetensors").exists()  # the state before the round
