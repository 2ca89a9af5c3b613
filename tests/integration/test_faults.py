"""Sites that fail do not stop the others, and the results name them and say why."""

import json

import pytest
from faulty_sites import Net, Tamper, site_data, slow_site_data
from nvflare.recipe import SimEnv

from medpfl.core.lock import claimed
from medpfl.flare.job.recipes import FedBNRecipe
from medpfl.flare.transport.executor import TASKS
from medpfl.server.checkpoint import load_checkpoint
from medpfl.server.participation import drawn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("faults")
    recipe = FedBNRecipe(model=Net, data=site_data, sites=9, rounds=2, min_sites=2, name="faults")
    recipe.add_client_output_filter(Tamper(), tasks=list(TASKS))
    recipe.execute(SimEnv(num_clients=9, workspace_root=str(workspace)))
    return json.loads((workspace / "faults" / "server" / "simulate_job" / "results.json").read_text())


def test_others_finish_and_one_comes_back(results):
    assert results["status"] == "finished"
    participants = [r["participants"] for r in results["rounds"]]
    # site-9 takes part with what is left of its update once it is scaled back.
    assert participants == [
        ["site-1", "site-6", "site-7", "site-9"],
        ["site-1", "site-6", "site-7", "site-8", "site-9"],
    ]
    assert [f["round"] for f in results["failures"] if f["site"] == "site-8"] == [1]
    assert {"site-1", "site-6"} <= set(results["final"]["selected"]["sites"])


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ("site-2", "OSError in task 'train' (the site's log says more)"),
        ("site-3", "the training loss became nan"),
        ("site-4", "shared entry 'fc.weight' has shape [2, 3], expected [2, 4]"),
        ("site-5", "entry 'norm.running_mean' does not belong to the shared state"),
        ("site-9", "its update is "),
    ],
)
def test_report_names_site_and_reason(results, site, reason):
    found = [f["reason"] for f in results["failures"] if f["site"] == site]
    assert len(found) >= 2  # in both rounds
    assert all(text.startswith(reason) for text in found[:2]), found


def test_a_site_that_answers_in_anothers_name_has_its_own(results):
    assert not [f for f in results["failures"] if f["site"] in ("site-1", "site-7")]
    assert "site-7" in results["final"]["selected"]["sites"]


def test_no_path_or_patient_leaves(results):
    assert "patient" not in json.dumps(results)
    assert "archive" not in json.dumps(results)


# The limits are long for sites that have all to import on a busy machine, and short for a site that sleeps 25 s.
@pytest.mark.parametrize(("limit", "value"), [("grace", 10), ("timeout", 20)], ids=["grace", "timeout"])
def test_a_site_that_stops_answering_is_left_behind(tmp_path, limit, value):
    recipe = FedBNRecipe(model=Net, data=slow_site_data, sites=3, rounds=1, min_sites=2, name="slow", **{limit: value})
    recipe.execute(SimEnv(num_clients=3, workspace_root=str(tmp_path)))
    results = json.loads((tmp_path / "slow" / "server" / "simulate_job" / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["rounds"][0]["participants"] == ["site-1", "site-3"]
    assert {f["site"] for f in results["failures"]} == {"site-2"}
    assert results["failures"][0]["reason"] == "no answer in time"


def test_a_share_of_the_sites_outlives_one_of_two_who_fails(tmp_path):
    """A round for which site-2 is drawn goes by without a mix, once the grace after the other one's answer is over."""
    fields = {"sites": 3, "rounds": 3, "participation": 0.7, "grace": 10, "alone": "no", "seed": 1, "name": "drawn"}
    recipe = FedBNRecipe(model=Net, data=slow_site_data, **fields)
    recipe.execute(SimEnv(num_clients=3, workspace_root=str(tmp_path)))
    results = json.loads((tmp_path / "drawn" / "server" / "simulate_job" / "results.json").read_text())
    assert results["status"] == "finished"
    each = [sorted(drawn(recipe.config, round_, recipe.config.site_names)) for round_ in (1, 2, 3)]
    assert ["site-2" in sites for sites in each] == [True, True, False]
    assert [r["participants"] for r in results["rounds"]] == [[], [], each[2]]
    assert [r.get("unused") for r in results["rounds"]] == [["site-3"], ["site-1"], None]
    assert results["failures"][0] == {"site": "site-2", "round": 1, "reason": "no answer in time"}
    assert any("in rounds 1, 2: nothing was mixed" in note for note in results["notes"])


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


def test_too_few_answers_in_time_end_the_run(tmp_path):
    recipe = FedBNRecipe(
        model=Net,
        data=slow_site_data,
        sites=3,
        rounds=1,
        min_sites=3,
        timeout=20,
        name="late",
        experiment="kept",
        state_dir=tmp_path,
    )
    with pytest.raises(RuntimeError):
        recipe.execute(SimEnv(num_clients=3, workspace_root=str(tmp_path)))
    error = json.loads((tmp_path / "late" / "server" / "simulate_job" / "error.json").read_text())["error"]
    assert "2 usable answers in phase 'train', the quorum is 3 of 3 sites (site-2: no answer in time)" in error
    state = load_checkpoint(tmp_path / "kept" / "server" / "server.safetensors", recipe.config)
    assert (state.phase, state.round, len(state.samples)) == ("train", 0, 3)


def test_a_second_job_of_the_same_experiment_is_refused(tmp_path):
    folder = tmp_path / "kept" / "server"
    folder.mkdir(parents=True)
    recipe = FedBNRecipe(
        model=Net, data=site_data, sites=2, rounds=1, name="second", experiment="kept", state_dir=tmp_path
    )
    with claimed(folder, "the first job is not refused"), pytest.raises(RuntimeError):
        recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    error = json.loads((tmp_path / "second" / "server" / "simulate_job" / "error.json").read_text())["error"]
    assert error == (
        "experiment 'kept' is in use by another job: "
        "wait for it to end, abort it, or submit with another experiment name"
    )
    assert not list(folder.glob("*.safetensors"))
