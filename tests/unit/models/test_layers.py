import pytest
import torch
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers, classification_layer, state_alone_changes, weighted_layers
from medpfl.models import build_model

VIT = {"patch_size": 7, "hidden_size": 24, "mlp_dim": 48, "num_layers": 2, "num_heads": 3}
UNET = {"channels": (4, 8, 16), "strides": (2, 2)}


def vgg_bn():
    """Laid out as torchvision's: numbered modules, so that no name says what is batch norm."""
    features, channels = [], 3
    for width in (8, 8, 16):
        features += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    classifier = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Dropout(), nn.Linear(12, 4))
    return nn.ModuleDict({"features": nn.Sequential(*features), "classifier": classifier})


class Shared(nn.Module):
    """One batch norm under two paths, and an output tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.embed = nn.Embedding(10, 4)
        self.norm_a = nn.BatchNorm1d(4)
        self.hidden = nn.Linear(4, 4)
        self.norm_b = self.norm_a
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.out = nn.Linear(4, 10)
        self.out.weight = self.embed.weight


def monai(name, shape, **model_args):
    return lambda: build_model(
        f"monai:{name}", in_channels=shape[0], num_classes=3, image_size=shape[1:], model_args=model_args
    )


MODELS = {
    "lenet5": lambda: build_model("lenet5", in_channels=1, num_classes=3, image_size=28),
    "alexnet-bn": lambda: build_model("alexnet-bn", in_channels=1, num_classes=3, image_size=64),
    "vgg-bn": vgg_bn,
    "resnet18": monai("resnet18", (1, 28, 28)),
    "densenet121": monai("DenseNet121", (1, 28, 28)),
    "efficientnet": monai("EfficientNetBN", (1, 28, 28), model_name="efficientnet-b0"),
    "vit": monai("ViT", (1, 28, 28), **VIT),
    "unet-2d": monai("UNet", (1, 32, 32), **UNET),
    "unet-3d": monai("UNet", (1, 16, 16, 16), **UNET, num_res_units=2, norm="batch"),
    "swin-unetr": monai("SwinUNETR", (1, 32, 32), feature_size=12),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "weight-norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "recurrent": lambda: nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 2)),
    "shared": Shared,
    "one-layer": lambda: nn.Linear(3, 2),
    "norm-only": lambda: nn.BatchNorm1d(3),
    "stateless": nn.ReLU,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_is_in_one_layer(name):
    model = MODELS[name]()
    layers = weighted_layers(model)
    assert sorted(entry for layer in layers for entry in layer) == sorted(model.state_dict())
    assert all(layers)


@pytest.mark.parametrize(
    ("name", "batch_norm", "layers", "top", "classifier"),
    [
        ("lenet5", 2, 5, ["fc3.weight", "fc3.bias"], "fc3"),
        ("alexnet-bn", 7, 8, ["fc3.weight", "fc3.bias"], "fc3"),
        ("vgg-bn", 3, 5, ["classifier.3.weight", "classifier.3.bias"], "classifier.3"),
        ("resnet18", 20, 21, ["fc.weight", "fc.bias"], "fc"),
        ("densenet121", 121, 121, ["class_layers.out.weight", "class_layers.out.bias"], "class_layers.out"),
        # Patch embedding, 2 x (output projection, qkv, two of the MLP), head.
        ("vit", 0, 10, ["classification_head.weight", "classification_head.bias"], "classification_head"),
    ],
)
def test_known_counts(name, batch_norm, layers, top, classifier):
    model = MODELS[name]()
    assert len(batch_norm_layers(model)) == batch_norm
    assert len(weighted_layers(model)) == layers
    assert weighted_layers(model)[-1] == top
    path, module = classification_layer(model)
    assert path == classifier
    assert module is model.get_submodule(path)


def test_normalisation_follows_its_layer():
    layers = weighted_layers(MODELS["alexnet-bn"]())
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert layers[0] == ["conv1.weight", "conv1.bias", *(f"bn1.{entry}" for entry in norm)]
    assert layers[6] == ["fc2.weight", "fc2.bias", *(f"bn7.{entry}" for entry in norm)]


def test_what_comes_before_the_first_layer_belongs_to_it():
    bottom = weighted_layers(MODELS["vit"]())[0]
    assert {"cls_token", "patch_embedding.position_embeddings", "patch_embedding.patch_embeddings.weight"} <= {*bottom}
    first, _ = weighted_layers(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2)))
    assert "0.running_mean" in first
    assert "1.weight" in first


def test_attention_is_one_layer_with_its_input_projection():
    layers = weighted_layers(MODELS["transformer"]())
    assert len(layers) == 6
    assert {"layers.1.self_attn.in_proj_weight", "layers.1.self_attn.out_proj.weight"} <= {*layers[3]}


def test_activations_with_parameters_are_no_layers():
    layers = weighted_layers(nn.Sequential(nn.Conv2d(1, 2, 3), nn.PReLU(), nn.LayerNorm([2, 4, 4]), nn.Conv2d(2, 2, 3)))
    assert layers == [["0.weight", "0.bias", "1.weight", "2.weight", "2.bias"], ["3.weight", "3.bias"]]


def test_shared_modules_and_tied_weights():
    model = Shared()
    assert list(batch_norm_layers(model)) == ["norm_a", "norm_b"]
    embed, hidden, out = weighted_layers(model)
    assert {"scale", "steps", "embed.weight", "norm_a.weight", "norm_b.weight", "out.weight"} <= {*embed}
    assert hidden == ["hidden.weight", "hidden.bias"]
    assert out == ["out.bias"]


def test_batch_norm_is_found_by_type():
    model = nn.ModuleDict({"bn": nn.GroupNorm(1, 4), "plain": nn.SyncBatchNorm(4), "turbine": nn.InstanceNorm2d(4)})
    assert list(batch_norm_layers(model)) == ["plain"]
    assert list(batch_norm_layers(nn.BatchNorm1d(2))) == [""]


def test_no_linear_layer():
    with pytest.raises(UserError, match="Sequential has no linear layer"):
        classification_layer(nn.Sequential(nn.Conv2d(1, 2, 1)))


def test_what_is_no_part_of_the_state_is_afterwards_what_it_was_also_under_two_names():
    model = nn.Sequential(nn.Linear(1, 1), nn.Module(), nn.Module())
    for layer in model[1:]:
        layer.register_buffer("aside", model[1].aside if layer is model[2] else torch.ones(2), persistent=False)
    with pytest.raises(ValueError, match="in a pass"), state_alone_changes(model):
        model[1].aside.add_(1)
        model[2].aside = torch.zeros(3)
        model[0].bias.data.fill_(7)
        raise ValueError("in a pass")
    assert model[1].aside.tolist() == [1, 1] and model[2].aside is model[1].aside
    assert model[0].bias.item() == 7
