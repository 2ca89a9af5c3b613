"""Start weights, frozen parts and adapters: the same in this process and in FLARE, where the file is the server's."""

import json
from pathlib import Path

import pytest
import torch
from agreement import assert_same_models, figures
from safetensors.torch import load_file, save_file

from medpfl.models import build_model

VIT = {"num_layers": 1}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Of a network for colour images of three classes."""
    torch.manual_seed(11)
    model = build_model("vit-tiny", in_channels=3, num_classes=3, image_size=28, model_args=VIT)
    file = tmp_path_factory.mktemp("somewhere") / "other.safetensors"
    save_file(model.state_dict(), file)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 1], ids=["processes that last", "a process for every task"])
def test_simulator_and_process_agree(small_run, weights, threads):
    asked = {
        "init": str(weights),
        "adapters": "lora:2",
        "frozen": "modules:blocks.0.mlp.linear1",
        "personal": "modules:classification_head",
        "model": "vit-tiny",
        "model_args": VIT,
        "alone": "yes",
    }
    in_process, simulated = (
        small_run("fedavg", "inprocess", **asked),
        small_run("fedavg", "sim", threads=threads, **asked),
    )
    assert figures(in_process) == figures(simulated)
    assert_same_models(in_process, simulated)
    theirs = load_file(weights)
    for model in (load_file(file) for file in (simulated / "models").glob("*.safetensors")):
        assert torch.equal(model["blocks.0.attn.qkv.weight"], theirs["blocks.0.attn.qkv.weight"])
        assert not model["blocks.0.mlp.linear1.lora_b"].any()  # frozen with what it sits on
        assert model["blocks.0.attn.qkv.lora_b"].any()
    for folder in (in_process, simulated):
        said = json.loads((folder / "results.json").read_text())
        assert said["init"]["reshaped"]["count"] == 1
        assert said["init"]["classes"]["count"] == 2
        assert str(weights.parent) not in (folder / "results.json").read_text()
    at_sites = list((simulated / "flare").rglob("config_fed_client.json"))
    assert at_sites
    assert not any(str(weights.parent) in file.read_text() for file in at_sites)
