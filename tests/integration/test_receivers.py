"""FLARE's receivers get a series for each site and measure, and the sites get no event."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import series
from faulty_sites import Net, site_data
from nvflare.recipe import SimEnv
from recorder import Recorder

from medpfl.flare.job.recipes import FedBNRecipe

RUN = ["run", "fedbn", "--sites", "2", "--rounds", "2", "--train-fraction", "0.2", "--alone", "no", "--no-new-test"]


@pytest.mark.slow
def test_receivers_get_what_the_results_have(tmp_path):
    recipe = FedBNRecipe(model=Net, data=site_data, sites=2, rounds=2, min_sites=1, name="tracked", track="tensorboard")
    recipe._job.to_server(Recorder(), id="recorder")
    recipe._job.to_clients(Recorder(), id="recorder")
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    folder = tmp_path / "tracked" / "server" / "simulate_job"
    *told, end = map(json.loads, (folder / "recorded.jsonl").read_text().splitlines())
    assert end == "end"
    results = json.loads((folder / "results.json").read_text())
    expected = series.expected(results)
    assert {round_ for *_, round_ in expected} == {1, 2}
    assert {site for site, *_ in expected} == {"site-1", "site-2"}
    assert series.rounded(told) == expected
    assert ["site-1", "train_loss", results["rounds"][1]["sites"]["site-1"]["train_loss"], 2] in told
    assert series.tensorboard(folder / "tb_events") == expected
    at_sites = list(tmp_path.glob("tracked/site-*/**/recorded.jsonl"))
    assert len(at_sites) == 2
    assert all(file.read_text() == '"end"\n' for file in at_sites)
    assert not list(tmp_path.glob("tracked/site-*/**/*tfevents*"))


@pytest.fixture
def internet():
    """Environment whose way out is a proxy of the test's, and what was asked of it."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(200))

        threading.Thread(target=listen, daemon=True).start()
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        way_out = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        local = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")
        # MLflow is silent where it takes itself to be tested.
        kept = {k: v for k, v in os.environ.items() if k not in ("CI", "GITHUB_ACTIONS", "PYTEST_CURRENT_TEST")}
        yield kept | way_out | local | {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40}, asked


BY_ITSELF = {
    "mlflow": """
import mlflow
mlflow.set_tracking_uri("sqlite:///by-itself.db")
with mlflow.start_run():
    mlflow.log_metric("accuracy", 1.0)
""",
    "wandb": "import wandb; wandb.init(project='by-itself', settings=wandb.Settings(init_timeout=2))",
}
"""What makes a tracker call its makers, unless it is told not to; without an answer, wandb ends with an error."""


@pytest.mark.slow
@pytest.mark.parametrize("tracker", BY_ITSELF)
def test_trackers_write_at_the_server_and_stay_offline(tmp_path, medpfl, internet, tracker):
    pytest.importorskip(tracker)
    environment, asked = internet
    medpfl(*RUN, "--track", tracker, "--out", tmp_path / "run", env=environment, cwd=tmp_path)
    folder = tmp_path / "run" / "flare" / "fedbn" / "server" / "simulate_job"
    found = series.mlflow(folder / "mlflow.db") if tracker == "mlflow" else series.wandb(folder / "wandb")
    assert found == series.expected(json.loads((tmp_path / "run" / "results.json").read_text()))
    assert asked == []
    subprocess.run(
        [sys.executable, "-c", BY_ITSELF[tracker]], env=environment, cwd=tmp_path, capture_output=True, timeout=120
    )
    assert any(request.startswith(b"CONNECT") for request in asked)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["sim", "poc"])
def test_the_terminal_says_where_tensorboard_finds_a_run(tmp_path, medpfl, env):
    said = medpfl(*RUN, "--env", env, "--out", tmp_path / "run").stdout
    folder = Path(re.search(r"^Tracking: tensorboard --logdir (.+)$", said, re.MULTILINE)[1])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert series.tensorboard(folder) == series.expected(results)
