"""Sites that join by a FLARE job: the figures of one process, and a real federation that goes on as it was."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.flare.launch.poc import poc
from medpfl.flare.transport.endings import BEGUN
from medpfl.models import build_model
from medpfl.runs.folder import JOIN_JOB
from medpfl.runs.join import join
from medpfl.runs.join_job import join_here, join_in_production
from medpfl.runs.real_sites import run_in_production
from medpfl.site.delivery import CARD, WEIGHTS

NEW = {"data": "organamnist-sample", "train_fraction": 0.2, "sites": 1, "names": ("new-hospital",), "local_epochs": 1}
FEW_IMAGES = {"warmup": 1, "images": 20, "admm_iterations": 2}
CHANGES = {"fedimpres": {"model": "lenet5", "rounds": 3, "local_epochs": 1, "settings": FEW_IMAGES}}
REST = ("fedbn", "f-fedap", "vit-heads", "fedimpres")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file() and f.name != ".lock"}


def assert_close(ours, theirs, path=()):
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for key in ours:
            assert_close(ours[key], theirs[key], (*path, key))
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), path
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_close(*pair, (*path, i))
    else:
        assert ours == (pytest.approx(theirs, abs=1e-6) if isinstance(ours, float) else theirs), path


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedap", *REST])
def test_the_simulator_gives_the_figures_of_one_process(small_run, tmp_path, algorithm):
    run = small_run(algorithm, "inprocess", **CHANGES.get(algorithm, {}))
    before = contents(run / "state")
    here = join(algorithm, run, NEW, tmp_path / "here")
    simulated = join_here(algorithm, run, NEW, tmp_path / "sim", env="sim")
    assert_close(json.loads(json.dumps(here)), simulated)
    assert json.loads((tmp_path / "sim" / "join.json").read_text()) == simulated
    assert contents(run / "state") == before
    assert [file.name for file in (tmp_path / "sim").rglob(f"{BEGUN}/*")] == ["new-hospital"]
    ours, theirs = (
        load_file(out / "joined" / "new-hospital" / "selected" / WEIGHTS)
        for out in (tmp_path / "here", tmp_path / "sim")
    )
    assert all(tensor.equal(ours[name]) for name, tensor in theirs.items())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["f-fedap", "fedper"])
def test_start_weights_come_to_who_joins(small_run, tmp_path, algorithm):
    """The personal part and the model trained alone begin there, as in one process; FLARE carries them once."""
    torch.manual_seed(11)
    file = tmp_path / "of-the-server" / "start.safetensors"
    file.parent.mkdir()
    save_file(build_model("lenet5", in_channels=1, num_classes=11, image_size=28).state_dict(), file)
    run, said = small_run(algorithm, "inprocess", model="lenet5", init=str(file)), NEW | {"init": str(file)}
    here = join(algorithm, run, said, tmp_path / "here")
    simulated = join_here(algorithm, run, said, tmp_path / "sim", env="sim")
    assert_close(json.loads(json.dumps(here)), simulated)
    at_random = join(algorithm, small_run(algorithm, "inprocess", model="lenet5"), NEW, tmp_path / "random")
    assert at_random["sites"]["new-hospital"]["alone"] != here["sites"]["new-hospital"]["alone"]
    at_sites = list((tmp_path / "sim").rglob("config_fed_client.json"))
    assert at_sites
    assert not any("of-the-server" in config.read_text() for config in at_sites)


@pytest.mark.slow
def test_a_hospital_joins_a_federation_whose_sites_stay_as_they_are(medpfl, tmp_path):
    config = make_config(algorithm="fedap", sites=2, rounds=2, train_fraction=0.2)
    run = tmp_path / "run"
    with poc(tmp_path / "poc", [*config.site_names, "new-hospital"]) as system:
        kits = system.folder.parent
        run_in_production(config, run, kit=system.folder)
        name = json.loads((run / "job.json").read_text())["experiment"]
        kept = {site: contents(kits / site / "medpfl") for site in ("server", *config.site_names)}
        assert all(kept.values())

        said = ["--data", NEW["data"], "--train-fraction", "0.2", "--local-epochs", "1", "--sites", "new-hospital"]
        command = ["run", "fedap", "--join", run, "--env", "prod", "--kit", system.folder, "--out", tmp_path / "out"]
        done = medpfl(*command, *said)
        assert "Adapted against alone, mean accuracy" in done.stdout
        results = json.loads((tmp_path / "out" / "join.json").read_text())
        assert results["run"]["folder"] == "run"
        site = results["sites"]["new-hospital"]
        assert sum(site["weights"].values()) == pytest.approx(1)
        assert site["sent_bytes"] > 0
        selected = kits / "new-hospital" / "medpfl" / name / "new-hospital" / "selected"
        assert json.loads((selected / CARD).read_text())["test"] == site["adapted"]
        assert (selected / "bundle" / "configs" / "inference.json").exists()
        assert not list((tmp_path / "out").rglob("*.safetensors"))
        assert not (tmp_path / "out" / JOIN_JOB).exists()

        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        note = json.loads((run / "job.json").read_text()) | {"experiment": "another"}
        (elsewhere / "job.json").write_text(json.dumps(note))
        for folder, change, words in (
            (elsewhere, {}, "this server has no experiment 'another'"),
            (run, {"settings": {"lr": 1e30}}, "new-hospital: the training loss became nan"),
            (run, {"partition": "natural"}, "new-hospital: the site cannot begin: UserError"),
            (run, {"names": ("absent",)}, "0 of 1 sites are connected and 1 are needed: absent is missing"),
        ):
            with pytest.raises(UserError, match=words):
                join_in_production("fedap", folder, NEW | change, tmp_path / "out", kit=system.folder)
        assert {site: contents(kits / site / "medpfl") for site in kept} == kept


@pytest.mark.slow
def test_joining_in_a_poc(small_run, tmp_path):
    run = small_run("fedap", "inprocess")
    found = join_here("fedap", run, NEW, tmp_path / "poc", env="poc")
    assert_close(json.loads(json.dumps(join("fedap", run, NEW, tmp_path / "here"))), found)
