"""Low-rank adapters: by hand, in a network, and in a run."""

import json
import math

import pytest
import torch
from tiny import MODEL, config, run, same
from torch import nn

from medpfl.bundle.inference import network
from medpfl.core.declarations import AllButAdaptersAndTop, parse_declaration
from medpfl.core.errors import UserError
from medpfl.core.frozen import frozen_names
from medpfl.core.statefile import read_state, serialised_bytes
from medpfl.engine.federation import Federation
from medpfl.models import build_model, logits
from medpfl.models.lora import LoRA, LoRALinear
from medpfl.runs.experiment import run_experiment

SAMPLE = {"data": "organamnist-sample", "model": "vit-tiny", "train_fraction": 0.03, "rounds": 2, "sites": 2}
SMALL = {"num_layers": 1}


def vit(adapters="", **model_args):
    torch.manual_seed(0)
    args = SMALL | model_args
    return build_model(
        "vit-tiny", in_channels=1, num_classes=3, image_size=28, model_args=args, adapters=adapters
    ).eval()


def test_forward_by_hand():
    layer = nn.Linear(2, 2)
    adapted = LoRALinear(layer, LoRA(rank=1, alpha=3))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        layer.bias.copy_(torch.tensor([10.0, 20.0]))
        adapted.lora_a.copy_(torch.tensor([[1.0, 2.0]]))
        adapted.lora_b.copy_(torch.tensor([[1.0], [-1.0]]))
    # B A = [[1, 2], [-1, -2]], three times on top of the identity; x = (1, 1).
    assert adapted(torch.ones(1, 2)).tolist() == [[1 + 3 * 3 + 10, 1 - 3 * 3 + 20]]


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_w_plus_ba_times_alpha_over_r(bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 4, bias=bias), torch.randn(3, 5, 6)
    adapted = LoRALinear(layer, LoRA(rank=2, alpha=6))
    assert torch.equal(adapted(x), layer(x))  # B is zero
    assert adapted.lora_a.abs().max() <= 1 / math.sqrt(6)
    nn.init.normal_(adapted.lora_b)
    merged = layer.weight + 6 / 2 * adapted.lora_b @ adapted.lora_a
    torch.testing.assert_close(adapted(x), nn.functional.linear(x, merged, layer.bias))


def test_a_network_begins_as_without_adapters():
    x = torch.randn(2, 1, 28, 28)
    plain, adapted = vit(), vit("lora:2")
    assert torch.equal(logits(plain(x)), logits(adapted(x)))
    state = adapted.state_dict()
    assert same({name: state[name] for name in plain.state_dict()}, plain.state_dict())
    places = ("attn.out_proj", "attn.qkv", "mlp.linear1", "mlp.linear2")
    assert state.keys() - plain.state_dict().keys() == {f"blocks.0.{p}.lora_{which}" for p in places for which in "ab"}


@pytest.mark.parametrize(
    ("name", "side", "args"),
    [
        ("monai:UNETR", 16, {"hidden_size": 24, "mlp_dim": 48, "num_heads": 3, "feature_size": 4}),
        ("monai:SwinUNETR", 64, {"feature_size": 12, "norm_name": "batch"}),
    ],
)
def test_segmentation_networks_with_attention_have_them_too(name, side, args):
    model = build_model(name, in_channels=1, num_classes=2, image_size=side, model_args=args, adapters="lora:2")
    adapted = [path for path, module in model.named_modules() if isinstance(module, LoRALinear)]
    assert len(adapted) == 4 * len([path for path in adapted if path.endswith("qkv")]) > 0
    free = model.state_dict().keys() - frozen_names(model, AllButAdaptersAndTop(), torch.zeros(1, 1, side, side))
    assert free == {f"{path}.lora_{which}" for path in adapted for which in "ab"} | {
        "out.conv.conv.weight",
        "out.conv.conv.bias",
    }


def test_rank_and_alpha():
    assert LoRA.parse("lora:4") == LoRA(4, 4)
    assert LoRA.parse("lora:4:16") == LoRA(4, 16)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"adapters": "lora"}, "unknown adapters 'lora': use lora:RANK"),
        ({"adapters": "lora:0"}, "unknown adapters"),
        ({"adapters": "lora:4", "model": "lenet5"}, "lenet5 has no self-attention of MONAI's for adapters"),
        ({"adapters": "lora:4", "personal": "heads:0.5"}, "adapters lie across all heads"),
        ({"adapters": "lora:4", "pooling": "attention"}, "not --pooling attention's own"),
        ({"personal": "adapters"}, "ViT has no adapters: ask for some, e.g. --adapters lora:4"),
    ],
)
def test_what_cannot_be(asked, message):
    with pytest.raises(UserError, match=message):
        Federation.of(config("fedavg", **SAMPLE | asked))


@pytest.mark.parametrize("personal", ["nothing", pytest.param("adapters", marks=pytest.mark.slow)])
def test_a_run_trains_and_sends_adapters_and_the_output_layer_alone(personal):
    asked = config("fedavg", personal=personal, adapters="lora:2", model_args=SMALL, **SAMPLE)
    federation = Federation.of(asked)
    head = {"classification_head.weight", "classification_head.bias"}
    adapters = {n for n in federation.first() if "lora_" in n}
    assert set(federation.split.shared_names) == (head if personal == "adapters" else head | adapters)
    assert set(federation.split.personal_names) == (adapters if personal == "adapters" else set())
    state, sites = run(asked)
    first, sent = federation.first(), state.history[0]["sites"]["site-1"]["sent_bytes"]
    assert sent == serialised_bytes(federation.initial_shared)
    models = [site.store.get(MODEL, state.round) for site in sites.values()]
    for model in models:
        moved = {name for name in model if not torch.equal(model[name], first[name])}
        assert moved == head | adapters
    assert all(torch.equal(models[0][n], models[1][n]) for n in adapters) == (personal == "nothing")


@pytest.mark.slow
def test_the_delivered_bundle_builds_them(tmp_path):
    asked = config("fedavg", adapters="lora:2", model_args=SMALL, **SAMPLE)
    run_experiment(asked, tmp_path / "out", env="inprocess", threads=1)
    bundle = tmp_path / "out" / "state" / "site-1" / "selected" / "bundle"
    said = json.loads((bundle / "configs" / "inference.json").read_text())["network_def"]
    assert said.pop("_target_") == "medpfl.bundle.inference.network"
    assert said["adapters"] == "lora:2"
    state, _ = read_state(bundle / "models" / "model.safetensors")
    network(**said).load_state_dict(state)
    assert any(tensor.abs().sum() for name, tensor in state.items() if name.endswith("lora_b"))


def test_a_personal_part_says_adapters():
    model = vit("lora:2")
    adapters = {name for name in model.state_dict() if "lora_" in name}
    head = {"classification_head.weight", "classification_head.bias"}
    assert set(parse_declaration("adapters+modules:classification_head").personal(model)) == adapters | head
