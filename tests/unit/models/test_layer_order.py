"""Layers from bottom to top: as a forward pass uses them, and as the network registers them."""

import logging

import pytest
import torch
from test_segmentation_networks import TRANSFORMER
from tiny import config, run
from torch import nn

from medpfl.core.declarations import BelowTop, Nothing, TopLayers
from medpfl.core.layers import weighted_layers
from medpfl.core.parameters import ParameterSplit
from medpfl.engine.federation import Federation
from medpfl.models import build_model

VIT = {"patch_size": 7, "hidden_size": 24, "mlp_dim": 48, "num_layers": 1, "num_heads": 3}
SAME = [
    ("lenet5", (1, 28, 28), {}),
    ("alexnet-bn", (1, 64, 64), {}),
    ("pamap2-cnn", (3, 1, 40), {}),
    ("impression-cnn", (3, 16, 16), {}),
    ("resnet32", (1, 16, 16), {}),
    ("resnet110", (1, 16, 16), {}),
    ("monai:resnet18", (1, 28, 28), {}),
    ("monai:DenseNet121", (1, 32, 32), {}),
    ("monai:EfficientNetBN", (1, 32, 32), {"model_name": "efficientnet-b0"}),
    ("monai:BasicUNet", (1, 32, 32), {"features": [4, 4, 8, 8, 8, 4]}),
    ("monai:UNet", (1, 16, 16), {}),
]
OTHER = [
    ("vit-tiny", (1, 28, 28), {"num_layers": 1}, "classification_head"),
    ("vit-small", (1, 28, 28), {"patch_size": 7, "hidden_size": 24, "num_layers": 1}, "classification_head"),
    ("monai:ViT", (1, 28, 28), VIT, "classification_head"),
    ("unet", (1, 16, 16), {}, "model.2.1.conv.unit0.conv"),
    ("unet", (1, 8, 8, 8), {}, "model.2.1.conv.unit0.conv"),
    ("segresnet-small", (1, 8, 8, 8), {}, "conv_final.2.conv"),
    ("monai:AttentionUnet", (1, 16, 16), {}, "model.2.conv"),
    ("monai:DynUNet", (1, 16, 16), {"filters": [4, 8, 8, 8]}, "output_block.conv.conv"),
    ("monai:UNETR", (1, 16, 16), TRANSFORMER, "out.conv.conv"),
    ("monai:SwinUNETR", (1, 64, 64), {"feature_size": 12, "norm_name": "batch"}, "out.conv.conv"),
]


def build(name, shape, model_args):
    torch.manual_seed(0)
    return build_model(name, in_channels=shape[0], num_classes=3, image_size=shape[1:], model_args=model_args)


@pytest.mark.parametrize(("name", "shape", "model_args"), SAME)
def test_networks_that_register_layers_as_they_use_them(name, shape, model_args):
    model = build(name, shape, model_args)
    assert weighted_layers(model, torch.zeros(1, *shape)) == weighted_layers(model)


@pytest.mark.parametrize(("name", "shape", "model_args", "output"), OTHER)
def test_networks_that_do_not(name, shape, model_args, output):
    model, x = build(name, shape, model_args), torch.zeros(1, *shape)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    registered, used = weighted_layers(model), weighted_layers(model, x)
    assert registered != used
    assert sorted(n for layer in used for n in layer) == sorted(model.state_dict())
    assert used[-1] == [f"{output}.weight", f"{output}.bias"]
    assert model.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    for declaration in (TopLayers(2), BelowTop(2)):
        split = ParameterSplit(model, declaration, x)
        shared, personal = {*split.shared_names}, {*split.personal_names}
        assert shared | personal == before.keys()
        assert not shared & personal


def test_a_transformer_attends_before_its_mlp():
    """MONAI's block registers the MLP first, and the output projection before queries, keys and values."""
    used = weighted_layers(build("monai:ViT", (1, 28, 28), VIT), torch.zeros(1, 1, 28, 28))
    assert [layer[0] for layer in used] == [
        "cls_token",
        "blocks.0.attn.qkv.weight",
        "blocks.0.attn.out_proj.weight",
        "blocks.0.mlp.linear1.weight",
        "blocks.0.mlp.linear2.weight",
        "classification_head.weight",
    ]
    assert {"blocks.0.norm1.weight", "patch_embedding.position_embeddings"} < {*used[0]}
    assert used[2][2:] == ["blocks.0.norm2.weight", "blocks.0.norm2.bias"]
    assert used[4][2:] == ["norm.weight", "norm.bias"]


class Backwards(nn.Module):
    """Registers its output first, and a layer that it never uses last."""

    def __init__(self):
        super().__init__()
        self.out, self.norm, self.into = nn.Linear(4, 3), nn.BatchNorm1d(4), nn.Linear(16, 4)
        self.idle = nn.Linear(2, 2)

    def forward(self, x):
        return self.out(self.norm(self.into(x.flatten(1))))


def test_what_no_pass_uses_lies_at_the_bottom():
    idle, into, out = weighted_layers(Backwards(), torch.zeros(1, 16))
    assert idle == ["idle.weight", "idle.bias"]
    assert into[:2] == ["norm.weight", "norm.bias"]
    assert {"norm.num_batches_tracked", "into.weight"} < {*into}
    assert out == ["out.weight", "out.bias"]


def test_weights_that_are_handed_on_without_a_call():
    """torch's attention calls none of its projections, and its layers in eval mode hand all weights to one kernel."""
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    used = weighted_layers(layers, torch.zeros(1, 5, 8))
    assert [layer[0] for layer in used] == [layer[0] for layer in weighted_layers(layers)]


def test_a_run_counts_along_the_way_of_its_images():
    federation = Federation.of(
        config("fedper", data="organamnist-sample", model="vit-tiny", settings={"layers": 2}, sites=2)
    )
    assert federation.split.personal_names == (
        *(f"blocks.3.mlp.linear2.{entry}" for entry in ("weight", "bias")),
        *("norm.weight", "norm.bias", "classification_head.weight", "classification_head.bias"),
    )


def test_where_nobody_knows_the_images_it_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        federation = Federation.of(config("fedavg", personal="top:1"))
    assert set(federation.split.personal_names) == {"fc2.weight", "fc2.bias", "norm.num_batches_tracked"}
    assert "--personal top:1 counts the layers of tiny:Net in the order in which its code creates them" in caplog.text
    assert "the size of the images is not known before training" in caplog.text
    caplog.clear()
    Federation.of(config("fedbn"))
    assert not caplog.text


class HeadFirst(nn.Module):
    """Creates the layer that classifies before the one that it takes its inputs from."""

    def __init__(self):
        super().__init__()
        self.head, self.norm, self.fc = nn.Linear(6, 3), nn.BatchNorm1d(6), nn.Linear(16, 6)

    def forward(self, x):
        return self.head(self.norm(self.fc(x.flatten(1))))


def test_where_nobody_knows_the_images_the_layer_that_classifies_is_named(caplog):
    """FedAP's variant would else take the statistics of another layer without a word."""
    split = ParameterSplit(HeadFirst(), Nothing())
    assert not caplog.text
    assert [split.classification_layer(HeadFirst())[0] for _ in range(2)] == ["fc", "fc"]
    assert caplog.text.count("HeadFirst: 'fc' is taken for the layer that classifies") == 1
    caplog.clear()
    traced = ParameterSplit(HeadFirst(), Nothing(), torch.zeros(2, 16))
    assert traced.classification_layer(HeadFirst())[0] == "head"
    one = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    assert ParameterSplit(one, Nothing()).classification_layer(one)[0] == "1"
    assert not caplog.text


def test_a_run_of_loaders_says_which_layer_it_takes(caplog):
    run(config("d-fedap", sites=3, rounds=1))
    assert caplog.text.count("Net: 'fc2' is taken for the layer that classifies") == 1
