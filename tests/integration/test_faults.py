"""Sites that fail do not stop the others, and the results name them and say why."""

import json

import pytest
from faulty_sites import Net, Reshape, site_data
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
