"""What a job says never runs as code under ``python -m monai.bundle run``: each attack, on a delivered bundle."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.statefile import read_state
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.site.store import DiskStore

NETWORK = {"channels": [2], "strides": [2]}
MARKER = "attacked"
CALL = f"__import__('pathlib').Path('{MARKER}').touch()"


def picture_folder(root):
    rng = np.random.default_rng(0)
    for number in range(12):
        file = root / "here" / ("ill", "well")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8)).save(file)
    return root


def config(root, **fields):
    arguments = {"size": 16, "channels": "grey"} | fields.pop("data_args", {})
    model_args = NETWORK | fields.pop("model_args", {})
    common = {"sites": 1, "rounds": 1, "partition": "natural", "device": "cpu", "settings": {"batch_size": 4}}
    common |= {"algorithm": "local", "model": "monai:Classifier", "data": str(root)}
    return make_config(**common | fields, data_args=arguments, model_args=model_args)


def delivered(run_config, folder):
    """Trains for a round; returns the site's folder of the last model."""
    federation = Federation.of(run_config)
    [name] = run_config.site_names
    sites = {name: federation.site(name, DiskStore(folder / name, durable=False))}
    run_in_process(federation.plan(), sites, federation.model, workers=1)
    return folder / name / "last"


def classify(bundle, root):
    picture = next((root / "here" / "ill").iterdir())
    command = [sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json"]
    command += ["--bundle_root", ".", "--input_path", str(picture)]
    return subprocess.run(command, cwd=bundle, capture_output=True, text=True, timeout=200)


ATTACKS = {
    "a class name": ({"data_args": {"classes": ["ill", "well", "$" + CALL]}}, r"data_args.classes\[2\]: .*begins with"),
    "a class name in one text": ({"data_args": {"classes": "ill,well,$" + CALL}}, r"data_args.classes\[2\]: .*begins"),
    "a model argument": (
        {"model_args": {"act": ["relu", {"inplace": "$" + CALL}]}},
        r"model_args.act\[1\].inplace: .*begins with",
    ),
    "a key": (
        {"model_args": {"act": ["relu", {"inplace": {"_target_": "os.mkdir", "path": MARKER}}]}},
        r"model_args.act\[1\].inplace: the key '_target_'",
    ),
    "how pictures are read": ({"data_args": {"fit": "$" + CALL}}, "--data-arg fit: Input should be 'crop'"),
    "the model's name": ({"model": "$" + CALL}, "model: .* begins with"),
    "a site's name": ({"names": ["$" + CALL]}, "names: site name .* letters, digits"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_jobs_text_is_refused_before_the_training_and_never_runs(tmp_path, monkeypatch, attack):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, (fields, words) = picture_folder(tmp_path / "eyes"), ATTACKS[attack]
    refused = ""
    try:
        print(classify(delivered(config(root, **fields), tmp_path) / "bundle", root))
    except UserError as error:
        refused = str(error)
    assert not [*tmp_path.rglob(MARKER)]
    assert not [*tmp_path.rglob("*.safetensors")]
    assert re.search(words, refused)


@pytest.mark.slow
def test_an_honest_bundle_of_the_same_run_classifies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = picture_folder(tmp_path / "eyes")
    names = ["ill", "well", "95 % of <b>`cases`</b> @home $5"]
    run_config = config(root, data_args={"classes": names}, model_args={"act": ["relu", {"inplace": True}]})
    place = delivered(run_config, tmp_path)
    done = classify(place / "bundle", root)
    [result] = json.loads(done.stdout[done.stdout.index("{") :])["results"]
    assert list(result["probabilities"]) == names
    text = (place / "bundle" / "docs" / "README.md").read_text()
    assert f"\n    2  {names[2]}\n" in text  # as code, which shows it as it is
    assert text.count("`cases`") == 1


LATE = {
    "site": lambda delivery, site: (delivery, "$" + CALL),
    r"classes\[1\]": lambda delivery, site: (
        replace(delivery, inputs=replace(delivery.inputs, classes=("ill", "$" + CALL))),
        site,
    ),
    "model": lambda delivery, site: (replace(delivery, model={**delivery.model, "name": "@network"}), site),
    "model_args": lambda delivery, site: (
        replace(delivery, model={**delivery.model, "model_args": {"_target_": "os.mkdir", "path": MARKER}}),
        site,
    ),
    "preprocessing.fit": lambda delivery, site: (
        replace(delivery, inputs=replace(delivery.inputs, settings={**delivery.inputs.settings, "fit": "%x"})),
        site,
    ),
}


@pytest.mark.parametrize("field", LATE)
def test_what_comes_as_far_as_the_bundle_costs_the_bundle_alone(tmp_path, caplog, field):
    federation = Federation.of(config(picture_folder(tmp_path / "eyes")))
    delivery, site = LATE[field](federation.delivery(tmp_path / "out"), "site-1")
    state = {"w": torch.ones(2)}
    delivery.write("last", site, 1, state, {"samples": {}, "validation": None, "test": None})
    place = tmp_path / "out" / "last"
    assert sorted(file.name for file in place.iterdir()) == ["card.json", "model.safetensors"]
    assert torch.equal(read_state(place / "model.safetensors")[0]["w"], state["w"])
    assert json.loads((place / "card.json").read_text())["bundle"] is None
    assert re.search(f"the last model is left without a bundle: {field}: ", caplog.text)
