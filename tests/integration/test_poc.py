"""A recipe in FLARE's POC environment: server and sites as processes that connect; the job carries the package."""

import json
import os
from pathlib import Path

from nvflare.recipe import PocEnv

from medpfl.flare.recipes import FedAPRecipe


def test_fedap_in_poc(tmp_path, monkeypatch):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    env = PocEnv(num_clients=2)
    try:
        run = FedAPRecipe(sites=2, rounds=2, train_fraction=0.2, byoc=True).execute(env)
        folder = run.get_result(timeout=300, clean_up=False)
        assert "COMPLETED" in run.get_status()
        results = json.loads((Path(folder) / "workspace" / "results.json").read_text())
    finally:
        env.stop(clean_up=False)
    assert results["status"] == "finished"
    assert not results["failures"]
    assert [r["participants"] for r in results["rounds"]] == [["site-1", "site-2"]] * 2
    kits = next((tmp_path / "poc").glob("*/prod_00"))
    personal = [os.path.relpath(f, kits).split(os.sep)[0] for f in kits.rglob("personal-*.safetensors")]
    assert set(personal) == {"site-1", "site-2"}  # and none at the server
