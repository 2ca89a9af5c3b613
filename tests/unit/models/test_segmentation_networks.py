"""Networks whose output has a value for each pixel: MONAI's by name, this package's sizes of them, and batch norm."""

import pytest
import torch

from medpfl.core.declarations import BatchNorm
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.models import build_model, logits

TRANSFORMER = {"hidden_size": 24, "mlp_dim": 48, "num_heads": 3, "feature_size": 4}
SMALL = {"features": [4, 4, 8, 8, 8, 4]}
CASES = [
    ("unet", 32, {}),
    ("segresnet-small", 16, {}),
    ("monai:UNet", 16, {}),
    ("monai:AttentionUnet", 16, {}),
    ("monai:DynUNet", 16, {"filters": [4, 8, 8, 8]}),
    ("monai:SegResNet", 16, {}),
    ("monai:SegResNetDS", 16, {"init_filters": 8}),
    ("monai:BasicUNet", 32, SMALL),
    ("monai:BasicUNetPlusPlus", 32, SMALL),
    ("monai:UNETR", 16, TRANSFORMER),
]
ONCE = [("monai:SwinUNETR", 2, 64, {"feature_size": 12}), ("monai:FlexibleUNet", 2, 32, {}), ("monai:VNet", 2, 16, {})]


def build(name, dims=2, side=32, **model_args):
    return build_model(name, in_channels=2, num_classes=3, image_size=(side,) * dims, model_args=model_args)


@pytest.mark.parametrize(
    ("name", "dims", "side", "model_args"),
    [(name, dims, side, args) for name, side, args in CASES for dims in (2, 3)] + ONCE,
)
def test_a_value_for_each_class_and_pixel(name, dims, side, model_args):
    model = build(name, dims, side, **model_args).eval()
    with torch.inference_mode():
        assert logits(model(torch.zeros(2, 2, *(side,) * dims))).shape == (2, 3, *(side,) * dims)


def test_sides_may_differ():
    model = build_model("unet", in_channels=1, num_classes=2, image_size=(8, 16, 24)).eval()
    assert model(torch.zeros(1, 1, 8, 16, 24)).shape == (1, 2, 8, 16, 24)
    flat = {"strides": [[1, 2, 2], [2, 2, 2]], "channels": [4, 8, 8]}
    model = build_model("monai:UNet", in_channels=1, num_classes=2, image_size=(2, 8, 8), model_args=flat).eval()
    assert model(torch.zeros(1, 1, 2, 8, 8)).shape == (1, 2, 2, 8, 8)


@pytest.mark.parametrize(("name", "dims"), [("resnet18", 3), ("DenseNet121", 2), ("DenseNet121", 3)])
def test_classifiers_of_both_kinds(name, dims):
    small = {"block_config": [2, 2]} if name == "DenseNet121" else {"widen_factor": 0.25}
    assert logits(build(f"monai:{name}", dims, 16, **small)(torch.zeros(2, 2, *(16,) * dims))).shape == (2, 3)


def test_levels_follow_what_is_given():
    assert build("monai:UNet", channels=[4, 8]).strides == (2,)
    assert len(build("monai:DynUNet", strides=[1, 2, 2], filters=[4, 4, 8]).kernel_size) == 3


@pytest.mark.parametrize(
    ("name", "side", "model_args", "message"),
    [
        (
            "unet",
            28,
            {},
            r"unet takes images whose sides are multiples of 8x8, got 28x28: use images of 24x24 or 32x32",
        ),
        ("segresnet-small", 3, {}, r"multiples of 4x4, got 3x3: use images of 4x4 pixels, or fewer levels"),
        ("monai:UNet", 28, {}, r"monai:UNet takes images whose sides are multiples of 8x8.*or other model arguments"),
        ("monai:DynUNet", 20, {}, "multiples of 8x8"),
        ("monai:SegResNet", 20, {}, "multiples of 8x8"),
        ("monai:UNETR", 40, {}, "multiples of 16x16"),
        ("monai:UNet", 32, {"strides": ["a"]}, "monai:UNet cannot be built"),
        ("monai:DynUNet", 32, {"deep_supervision": True}, "with deep_supervision it gives several outputs"),
        ("monai:SegResNetDS", 32, {"dsdepth": 3}, "with dsdepth it gives several outputs"),
        ("monai:FlexibleUNet", 32, {"pretrained": True}, "never downloaded"),
    ],
)
def test_what_cannot_be(name, side, model_args, message):
    with pytest.raises(UserError, match=message):
        build(name, 2, side, **model_args)


@pytest.mark.parametrize("name", ["unet", "segresnet-small"])
def test_own_sizes_have_batch_norm_and_fit_a_cpu(name):
    model = build(name, 3)
    assert batch_norm_layers(model)
    assert sum(p.numel() for p in model.parameters()) < 2e6


@pytest.mark.parametrize(
    ("name", "model_args", "norm", "argument"),
    [
        ("monai:UNet", {}, "InstanceNorm2d", "norm=batch"),
        ("unet", {"norm": "instance"}, "InstanceNorm2d", "norm=batch"),
        ("monai:SegResNet", {}, "GroupNorm", "norm=batch"),
        ("monai:DynUNet", {}, "InstanceNorm2d", "norm_name=batch"),
        ("monai:BasicUNet", SMALL, "InstanceNorm2d", "norm=batch"),
        ("monai:UNETR", TRANSFORMER, "InstanceNorm2d and LayerNorm", "norm_name=batch"),
        ("monai:SwinUNETR", {"feature_size": 12}, "InstanceNorm2d and LayerNorm", "norm_name=batch"),
    ],
)
def test_without_batch_norm_the_argument_that_gives_it_is_named(name, model_args, norm, argument):
    with pytest.raises(UserError, match=f"no batch-norm layer.*in the place of {norm} with --model-arg {argument}"):
        BatchNorm().personal(build(name, **model_args))
    key, _, value = argument.partition("=")
    assert BatchNorm().personal(build(name, **model_args | {key: value}))


def test_networks_that_no_argument_gives_batch_norm():
    with pytest.raises(UserError, match="choose a model with batch norm, or another personal part"):
        BatchNorm().personal(build_model("vit-tiny", in_channels=1, num_classes=2, image_size=28))
