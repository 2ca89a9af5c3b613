"""What a site finds in its folder after a run: weights, a card, and a bundle that MONAI runs."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.bundle import ConfigWorkflow
from PIL import Image
from tiny import config, run, same, sites_of

from medpfl.bundle.inference import items
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import fingerprint, read_state
from medpfl.core.whole_file import write_bytes
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.rounds import messages
from medpfl.site.delivery import _FIELDS, Delivery
from medpfl.site.store import MODEL, DiskStore
from medpfl.tasks.evaluation import predict


def trained(folder, run_config):
    """Runs a federation whose sites keep their state in folders; returns it and its sites."""
    federation = Federation.of(run_config)
    names = run_config.site_names
    sites = {name: federation.site(name, DiskStore(folder / name, durable=False)) for name in names}
    state = run_in_process(federation.plan(), sites, federation.model, workers=1)
    return federation, sites, state


def card(folder):
    return json.loads((folder / "card.json").read_text())


def classified(bundle, path, output, **changes):
    """What MONAI makes of a path with the bundle: the first result's probabilities in the order of the classes."""
    config_file = str(bundle / "configs" / "inference.json")
    options = {"bundle_root": str(bundle), "input_path": str(path), "output_path": str(output)} | changes
    workflow = ConfigWorkflow(config_file=config_file, workflow_type="inference", **options)
    workflow.initialize()
    assert workflow.check_properties() == []
    workflow.run()
    return list(json.loads(output.read_text())["results"][0]["probabilities"].values())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    run_config = make_config(
        algorithm="fedbn", sites=2, rounds=2, train_fraction=0.05, data_args={"pad": 32}, device="cpu"
    )
    return folder, *trained(folder, run_config)


def test_both_models_are_there_and_are_those_of_the_store(pictures):
    folder, federation, sites, state = pictures
    for name, site in sites.items():
        tested = state.final[name]["tested"]
        for which in ("selected", "last"):
            model, info = read_state(folder / name / which / "model.safetensors")
            assert same(model, site.store.get(MODEL, tested[which]))
            assert info == {"site": name, "round": tested[which]}
            found = card(folder / name / which)
            assert not {*found} - _FIELDS  # which no mechanism may say
            assert found["sha256"] == fingerprint(model)
            assert found["test"] == json.loads(json.dumps(state.final[name]["test"][which]))
            reported = state.history[tested[which] - 1]["sites"][name]["validation"]
            assert found["validation"] == json.loads(json.dumps(reported))
            assert found["samples"]["train"] == state.samples[name]
            assert found["classes"] == federation.source.dataset.classes
            assert found["model"]["image_size"] == 32


def test_a_picture_in_the_bundle_has_the_sites_own_probabilities(pictures, tmp_path):
    folder, federation, sites, _ = pictures
    place = folder / "site-1" / "selected"
    images, edge = sites["site-1"].data.images["test"], slice(2, 30)
    Image.fromarray(images[3, 0, edge, edge].numpy()).save(tmp_path / "new.png")
    model = federation.model()
    model.load_state_dict(read_state(place / "model.safetensors")[0])
    expected, _ = predict(model, sites["site-1"].data, "test")
    found = classified(place / "bundle", tmp_path / "new.png", tmp_path / "out.json")
    assert found == pytest.approx(expected[3].tolist(), abs=1e-5)


@pytest.mark.slow
def test_a_bundle_alone_is_enough_and_monais_command_runs_it(pictures, tmp_path):
    shutil.copytree(pictures[0] / "site-2" / "last" / "bundle", tmp_path / "moved")
    (tmp_path / "in").mkdir()
    Image.new("L", (28, 28), 90).save(tmp_path / "in" / "grey.png")
    np.save(tmp_path / "in" / "grey.npy", np.full((28, 28), 90, np.uint8))
    command = [sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json"]
    command += ["--bundle_root", ".", "--input_path", str(tmp_path / "in")]
    done = subprocess.run(command, cwd=tmp_path / "moved", capture_output=True, text=True, timeout=200)
    printed = json.loads(done.stdout[done.stdout.index("{") :])
    array, picture = printed["results"]
    assert (array["name"], picture["name"]) == ("grey.npy", "grey.png")
    assert array["probabilities"] == picture["probabilities"]
    assert sum(picture["probabilities"].values()) == pytest.approx(1)
    assert done.returncode == 0
    (tmp_path / "in" / "torn.png").write_bytes((tmp_path / "in" / "grey.png").read_bytes()[:40])
    done = subprocess.run(command, cwd=tmp_path / "moved", capture_output=True, text=True, timeout=200)
    again = json.loads(done.stdout[done.stdout.index("{") :])
    assert again["results"] == printed["results"]
    assert [item["name"] for item in again["left_out"]] == ["torn.png"]
    assert done.returncode == 1
    said = "medpfl: 1 of 3 were left out; left_out in the answer says which, and why"
    assert done.stderr.splitlines()[-1] == said


@pytest.mark.slow
def test_monais_command_ends_with_what_is_wrong_in_one_line(pictures, tmp_path):
    bundle = pictures[0] / "site-2" / "last" / "bundle"
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json"]
    command += ["--bundle_root", ".", "--input_path", str(tmp_path / "empty")]
    done = subprocess.run(command, cwd=bundle, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"medpfl: --input_path {tmp_path / 'empty'}: holds no picture (.png, ")
    assert last.endswith("give a picture, or a folder of them")
    assert "Traceback" not in done.stderr


def test_what_is_wrong_is_said(pictures, tmp_path):
    bundle = pictures[0] / "site-1" / "last" / "bundle"
    Image.new("L", (30, 28)).save(tmp_path / "wide.png")
    (tmp_path / "text.png").write_text("no picture")
    for name, words in (
        ("wide.png", "is 30x28 pixels; the model was trained on 28x28"),
        ("text.png", "cannot be read as a picture"),
        ("none.png", "there is no such file"),
    ):
        with pytest.raises(RuntimeError) as caught:
            classified(bundle, tmp_path / name, tmp_path / "out.json")
        cause = caught.value
        while cause.__cause__ is not None:
            cause = cause.__cause__
        assert isinstance(cause, UserError)
        assert words in str(cause)


def test_a_picture_that_cannot_be_used_costs_the_others_nothing(pictures, tmp_path, caplog):
    bundle, new = pictures[0] / "site-1" / "last" / "bundle", tmp_path / "new"
    new.mkdir()
    Image.new("L", (30, 28)).save(new / "wide.png")
    (new / "text.png").write_text("no picture")
    with pytest.raises(RuntimeError) as caught:
        classified(bundle, new, tmp_path / "out.json")
    assert str(caught.value.__cause__).endswith("\n1 more cannot be used either")
    assert not (tmp_path / "out.json").exists()
    Image.new("L", (28, 28), 90).save(new / "good.png")
    together = classified(bundle, new, tmp_path / "out.json")
    left_out = json.loads((tmp_path / "out.json").read_text())["left_out"]
    assert [(item["name"], item["why"] in caplog.text) for item in left_out] == [("text.png", True), ("wide.png", True)]
    assert "is 30x28 pixels; the model was trained on 28x28" in left_out[1]["why"]
    assert classified(bundle, new / "good.png", tmp_path / "out.json") == together
    assert "left_out" not in json.loads((tmp_path / "out.json").read_text())


def test_the_network_is_as_the_metadata_say(pictures):
    from monai.bundle import verify_net_in_out

    configs = pictures[0] / "site-1" / "last" / "bundle" / "configs"
    meta, inference = (str(configs / f"{name}.json") for name in ("metadata", "inference"))
    verify_net_in_out("network_def", meta, inference, device="cpu")


def test_an_interrupted_write_leaves_the_old_folder(pictures, monkeypatch):
    folder, _, sites, _ = pictures
    site, place = sites["site-1"], folder / "site-1" / "last"
    before = {f: f.read_bytes() for f in sorted(place.rglob("*")) if f.is_file()}
    record = {"samples": {}, "validation": None, "test": None}
    state = {"w": torch.zeros(2)}
    with monkeypatch.context() as broken:

        def full(*_):
            raise OSError("no space left on device")

        broken.setattr("medpfl.site.delivery._write_bundle", full)
        with pytest.raises(OSError, match="no space left"):
            site.delivery.write("last", "site-1", 9, state, record)
    assert {f: f.read_bytes() for f in sorted(place.rglob("*")) if f.is_file()} == before
    assert not list(place.parent.glob(".*"))


def test_a_full_disk_does_not_lose_the_answer(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("medpfl.site.delivery._replace", full)
    _, _, state = trained(tmp_path, config("fedbn", rounds=1))
    assert set(state.final) == {"site-1", "site-2", "site-3"}
    assert "site-2: the last model could not be written: no space left" in caplog.text


def test_what_says_something_of_patients_is_the_sites_alone_wherever_it_is_moved(pictures):
    folder, *_ = pictures
    left = [file for file in (folder / "site-1" / "selected").iterdir() if file.is_file()]
    assert {"test.json", "card.json", "verdict.html", "model.safetensors"} == {file.name for file in left}
    assert {stat.S_IMODE(file.stat().st_mode) for file in left} == {0o600}


@pytest.mark.parametrize("durable", [True, False])
def test_a_real_sites_models_are_on_the_disk_before_the_earlier_ones_go(tmp_path, monkeypatch, durable):
    seen, sync = [], os.fsync

    def noted(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}")).relative_to(tmp_path)
        seen.append((str(path), (tmp_path / ".last.old").exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    delivery = Delivery(tmp_path, config("fedbn"), {}, None, durable)
    for round_ in (1, 2):
        seen.clear()
        delivery.write("last", "site-1", round_, {"w": torch.ones(2)}, RECORD)
    if durable:
        assert {".last.new/model.safetensors", ".last.new/card.json", ".last.new", "."} <= {path for path, _ in seen}
        assert seen[-1] == (".", True)
    else:
        assert not seen


def test_a_durable_files_name_is_on_the_disk_too(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.readlink(f"/proc/self/fd/{handle}")))
    write_bytes(tmp_path / "a", b"1")
    assert seen[-1] == str(tmp_path) and len(seen) == 2
    write_bytes(tmp_path / "a", b"2", durable=False)
    assert len(seen) == 2


def test_models_of_an_earlier_run_are_archived_at_the_next_ones_first_task(tmp_path):
    federation, sites, _ = trained(tmp_path, config("fedbn", rounds=1))
    left = tmp_path / "site-1"
    for which in ("selected", "last"):
        for end in ("new", "old"):
            shutil.copytree(left / which, left / f".{which}.{end}")
    message = messages(federation.plan(), ServerState())["site-1"]
    assert message.task == "prepare"
    sites["site-1"].handle(message, federation.model())
    assert not [*left.glob("model-*"), *left.glob("*/card.json"), *left.glob("personal-*"), *left.glob(".*.*")]
    assert sorted(file.parent.name for file in left.glob("archive/1/*/model.safetensors")) == ["last", "selected"]
    assert (tmp_path / "site-2" / "last" / "model.safetensors").exists()


def test_a_kill_while_one_model_replaces_another_loses_neither_at_the_next_run(tmp_path):
    federation, sites, _ = trained(tmp_path, config("fedbn", rounds=1))
    left = tmp_path / "site-1"
    (left / "selected").rename(left / ".selected.old")
    Delivery(left, federation.config, {}, None).write("last", "site-1", 1, {"w": torch.ones(2)}, RECORD, archive=True)
    assert (left / "selected" / "model.safetensors").exists()  # whichever is written first
    sites["site-1"].handle(messages(federation.plan(), ServerState())["site-1"], federation.model())
    assert sorted(file.parent.name for file in left.glob("archive/2/*/model.safetensors")) == ["last", "selected"]


def test_a_bundle_of_a_site_whose_name_the_machines_encoding_lacks(pictures, tmp_path, monkeypatch):
    folder, federation, _, _ = pictures
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "ascii")
    state, _ = read_state(folder / "site-1" / "last" / "model.safetensors")
    model, inputs = card(folder / "site-1" / "last")["model"], federation.source.inputs()
    Delivery(tmp_path, federation.config, model, inputs).write("last", "Köln", 1, state, RECORD)
    assert "Köln" in (tmp_path / "last" / "bundle" / "docs" / "README.md").read_bytes().decode()


RECORD = {"samples": {"train": 1, "validation": 1, "test": 1}, "validation": None, "test": None}


@pytest.mark.parametrize("arrays", [False, True])
def test_a_folders_arrays_are_taken_only_where_the_bundle_reads_them(tmp_path, arrays):
    for name in ("a.png", "b.TIF", "c.npy", "notes.txt"):
        (tmp_path / name).touch()
    names = [item["name"] for item in items(tmp_path, "picture", arrays)]
    assert names == ["a.png", "b.TIF", *(["c.npy"] if arrays else [])]


def test_ones_own_loaders_get_weights_and_card_but_no_bundle(tmp_path):
    _, _, state = trained(tmp_path, config("fedbn", rounds=1))
    place = tmp_path / "site-1" / "last"
    assert sorted(f.name for f in place.iterdir()) == ["card.json", "model.safetensors"]
    assert card(place)["bundle"] is None
    in_memory, _ = run(config("fedbn", rounds=1))
    assert state.final == in_memory.final


def test_states_in_memory_are_not_delivered():
    sites = sites_of(Federation.of(config("fedbn")))
    assert all(site.delivery is None for site in sites.values())


@pytest.mark.slow
def test_describing_a_bundle_needs_no_monai():
    code = "import sys, medpfl.site.delivery, medpfl.data.kinds.scans.scan_source; assert 'monai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_classes_that_are_never_predicted_stand_in_the_card(tmp_path, smoothing):
    settings = {"prior": 1.0, "prior_smoothing": smoothing}
    fields = {"sites": 2, "rounds": 1, "train_fraction": 0.1, "partition": "equal-dirichlet:0.1", "device": "cpu"}
    run_config = make_config(algorithm="fedavg", settings=settings, alone="no", **fields)
    federation, sites, _ = trained(tmp_path, run_config)
    for name, site in sites.items():
        said, text = card(tmp_path / name / "selected"), tmp_path / name / "selected" / "bundle" / "docs" / "README.md"
        lacking = [c for c, n in zip(said["classes"], site.data.class_counts(11).tolist(), strict=True) if not n]
        assert lacking
        assert said.get("never_predicted") == (None if smoothing else lacking)
        assert ("never predicts them" in text.read_text()) == (not smoothing)
        probabilities, _ = federation.config.learned.predict(model_of(federation, tmp_path / name), site.data, "test")
        if not smoothing:
            assert not {said["classes"][c] for c in probabilities.argmax(1)} & set(lacking)


def test_of_what_is_used_beside_the_methods_model_no_class_is_said_to_be_never_predicted(tmp_path):
    """What came and what a site trained alone have no frequencies in their last bias."""
    fields = {"sites": 3, "rounds": 2, "train_fraction": 0.1, "partition": "equal-dirichlet:0.1", "device": "cpu"}
    settings = {"prior": 1.0, "prior_smoothing": 0.0, "finetune_steps": 5}
    _, sites, _ = trained(tmp_path, make_config(algorithm="fedavg", settings=settings, use="blend", **fields))
    cards = [card(tmp_path / name / which) for name in sites for which in ("selected", "last")]
    used = [found["verdict"]["used"] for found in cards]
    assert any(of["weight"] < 1 for of in used)
    for found, of in zip(cards, used, strict=True):
        assert ("never_predicted" in found) == (of["weight"] == 1 and of["candidate"] != "as received")


def model_of(federation, folder):
    model = federation.model()
    model.load_state_dict(read_state(folder / "selected" / "model.safetensors")[0])
    return model
