"""FLARE's receivers get a series for each site and measure, and the sites get no event."""

import json

import pytest
from faulty_sites import Net, site_data
from nvflare.recipe import SimEnv
from recorder import Recorder

from medpfl.flare.recipes import FedBNRecipe
from medpfl.flare.tracking import MEASURES, installed


def job(tmp_path, **options):
    recipe = FedBNRecipe(model=Net, data=site_data, sites=2, rounds=2, min_sites=1, name="tracked", **options)
    return recipe, tmp_path / "tracked" / "server" / "simulate_job"


def test_a_receiver_gets_what_the_results_have(tmp_path):
    recipe, folder = job(tmp_path)
    recipe._job.to_server(Recorder(), id="receiver")
    recipe._job.to_clients(Recorder(), id="receiver")
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    *told, end = map(json.loads, (folder / "recorded.jsonl").read_text().splitlines())
    assert end == "end"
    results = json.loads((folder / "results.json").read_text())
    expected = []
    for record in results["rounds"]:
        for site, values in record["sites"].items():
            series = {"train_loss": values.get("train_loss")}
            series |= {f"validation/{m}": values["validation"][m] for m in MEASURES if values.get("validation")}
            expected += [[site, name, value, record["round"]] for name, value in series.items() if value is not None]
    assert sorted(told) == sorted(expected)
    assert ["site-1", "train_loss", results["rounds"][1]["sites"]["site-1"]["train_loss"], 2] in told
    at_sites = list(tmp_path.glob("tracked/site-*/**/recorded.jsonl"))
    assert len(at_sites) == 2
    assert all(file.read_text() == '"end"\n' for file in at_sites)


@pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")
def test_tensorboard_has_a_folder_for_each_site(tmp_path):
    recipe, folder = job(tmp_path, track="tensorboard")
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    assert list((folder / "tb_events" / "site-1").glob("events.out.tfevents.*"))
