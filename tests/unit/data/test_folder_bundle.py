"""A site's bundle reads a picture of any size as the site read its own, and a folder's centre can join."""

import json

import pytest
from monai.bundle import ConfigWorkflow
from pictures import write_centres

from medpfl.config.run import make_config
from medpfl.core.statefile import read_state
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.runs.join import join
from medpfl.site.store import DiskStore
from medpfl.tasks.evaluation import predict


@pytest.mark.parametrize(("fit", "channels"), [("pad", "rgb"), pytest.param("crop", "grey", marks=pytest.mark.slow)])
def test_probabilities_are_those_of_the_evaluation(tmp_path, monkeypatch, fit, channels):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = write_centres(tmp_path / "fundus")
    run_config = make_config(
        algorithm="fedbn", data=str(root), data_args={"size": 28, "fit": fit, "channels": channels},
        partition="natural", sites=2, held_out=1, rounds=1, local_epochs=1, settings={"batch_size": 4}, device="cpu",
    )  # fmt: skip
    federation = Federation.of(run_config)
    names = run_config.site_names
    sites = {n: federation.site(n, DiskStore(tmp_path / "state" / n, durable=False)) for n in names}
    server = tmp_path / "state" / "server"
    server.mkdir()
    run_in_process(federation.plan(), sites, federation.model, workers=1, checkpoint=server)

    place = tmp_path / "state" / "site-1" / "last"
    model = federation.model()
    model.load_state_dict(read_state(place / "model.safetensors")[0])
    expected, _ = predict(model, sites["site-1"].data, "test")
    pictures = federation.source._parts("north")["test"]
    bundle, output = place / "bundle", tmp_path / "out.json"
    for number, picture in enumerate(pictures):
        workflow = ConfigWorkflow(
            config_file=str(bundle / "configs" / "inference.json"), workflow_type="inference",
            bundle_root=str(bundle), input_path=str(picture.file), output_path=str(output),
        )  # fmt: skip
        workflow.initialize()
        workflow.run()
        [found] = json.loads(output.read_text())["results"]
        assert list(found["probabilities"].values()) == pytest.approx(expected[number].tolist(), abs=1e-5)

    config = json.loads((bundle / "configs" / "inference.json").read_text())
    assert config["dataset"]["data"] == "$inference.items(@input_path, 'picture', False)"  # it cannot open .npy

    joined = join("fedbn", tmp_path, {"local_epochs": 1}, tmp_path)["sites"]
    assert list(joined) == ["west"]
    assert joined["west"]["samples"] == {part: len(p) for part, p in federation.source._parts("west").items()}
    assert min(joined["west"]["samples"].values()) > 0
