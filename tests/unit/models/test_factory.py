import subprocess
import sys
from subprocess import Popen  # noqa: F401 - what a permitted module imports is not permitted with it

import pytest
import torch
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.permitted_code import permit
from medpfl.models import build_model, logits, model_rows
from medpfl.models.bag_attention import BagAttention

VIT = {"patch_size": 7, "hidden_size": 24, "mlp_dim": 48, "num_layers": 2, "num_heads": 3}


class Bare(nn.Module):
    """A user's class that asks for none of what the data know."""

    def __init__(self, width=3):
        super().__init__()
        self.width = width


def tuned(num_classes, image_size, width=4):
    """A user's factory that asks for some of it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(image_size[0] * image_size[1], width), nn.Linear(width, num_classes))


def forwarding(**kwargs) -> Bare:
    return Bare(**kwargs)


def explosive():
    raise RuntimeError("no\nway")


def not_a_network():
    return 3


def build(name, shape=(1, 28, 28), **model_args):
    return build_model(name, in_channels=shape[0], num_classes=5, image_size=shape[1:], model_args=model_args)


@pytest.mark.parametrize(
    ("name", "shape", "model_args"),
    [
        ("lenet5", (1, 28, 28), {}),
        ("lenet5", (3, 40, 32), {}),
        ("pamap2-cnn", (27, 1, 200), {}),
        ("impression-cnn", (3, 16, 16), {}),
        ("resnet32", (1, 28, 28), {}),
        ("resnet110", (3, 16, 17), {}),
        ("vit-tiny", (1, 28, 28), {}),
        ("vit-tiny", (3, 28, 64), {"num_layers": 1}),
        ("vit-small", (1, 28, 28), {"patch_size": 7, "hidden_size": 24, "num_layers": 1}),
        ("monai:resnet18", (1, 28, 28), {"widen_factor": 0.25}),
        ("monai:resnet10", (1, 16, 16, 16), {"widen_factor": 0.25}),
        ("monai:DenseNet121", (1, 32, 32), {"block_config": (2, 2)}),
        ("monai:EfficientNetBN", (3, 32, 32), {"model_name": "efficientnet-b0"}),
        ("monai:SEResNet50", (3, 32, 32), {"layers": (1, 1, 1, 1)}),
        ("monai:ViT", (1, 28, 28), VIT),
        ("monai:ViT", (1, 14, 14, 7), VIT),
        ("monai:Classifier", (1, 32, 32), {"channels": (4, 8), "strides": (2, 2)}),
        ("test_factory:tuned", (1, 28, 28), {}),
    ],
)
def test_logits_of_the_right_shape(name, shape, model_args, monkeypatch, request):
    monkeypatch.syspath_prepend(request.path.parent)
    model = build(name, shape, **model_args).eval()
    with torch.no_grad():
        assert logits(model(torch.zeros(2, *shape))).shape == (2, 5)


def test_one_number_is_a_square():
    assert build_model("lenet5", in_channels=1, num_classes=2, image_size=32).fc1.in_features == 16 * 5 * 5


def test_vit_gives_logits_beyond_tanh():
    head = build("monai:ViT", **VIT).classification_head
    assert isinstance(head, nn.Linear)


def test_the_user_outweighs_the_data():
    assert build("monai:resnet18", num_classes=9).fc.out_features == 9
    assert build("lenet5", in_channels=2).conv1.in_channels == 2


@pytest.mark.parametrize(
    ("spec", "model_args", "width"),
    [("Bare", {}, 3), ("Bare", {"width": 7}, 7), ("forwarding", {"width": 8}, 8)],
)
def test_own_classes_and_factories(spec, model_args, width, monkeypatch, request):
    monkeypatch.syspath_prepend(request.path.parent)
    assert build(f"test_factory:{spec}", **model_args).width == width


@pytest.mark.parametrize(
    ("name", "model_args", "message"),
    [
        ("lenet", {}, "unknown model 'lenet': did you mean lenet5"),
        ("LeNet5", {}, "did you mean lenet5"),
        ("zzz", {}, "unknown model 'zzz': use lenet5, .*monai:CLASS"),
        ("lenet5", {"sizes": 28}, r"lenet5 has no model argument 'sizes' \(did you mean size\?\); it accepts: in_ch"),
        ("lenet5", {"num_classes": "ten"}, "lenet5 cannot be built with .*num_classes='ten'"),
        (
            "resnet32",
            {"depth": 32},
            "resnet32 has no model argument 'depth'; it accepts: in_channels, num_classes, size$",
        ),
        ("vit-tiny", {"heads": 3}, r"vit-tiny has no model argument 'heads' \(did you mean num_heads"),
        ("vit-tiny", {"num_heads": 5}, "vit-tiny cannot be built .*num_heads=5: ValueError: hidden_size should be div"),
        ("monai:Resnet19", {}, "no network 'Resnet19': did you mean resnet18"),
        ("monai:vit", {}, "no network 'vit': did you mean ViT"),
        ("monai:get_efficientnet_image_size", {}, "no network"),
        ("monai:ViT", {}, "monai:ViT also needs the model argument patch_size"),
        (
            "monai:ViT",
            VIT | {"num_heads": 5},
            "monai:ViT cannot be built .*ValueError: hidden_size should be divisible",
        ),
        (
            "monai:resnet18",
            {"no_maxpool": True},
            "no model argument 'no_maxpool'.*did you mean no_max_pool.*accepts: .*num_classes",
        ),
        ("monai:resnet18", {"block": "basic"}, "no model argument 'block'"),
        ("monai:SEResNet50", {"depth": 3}, "no model argument 'depth'.*accepts: .*dropout_dim"),
        ("monai:resnet18", {"pretrained": True}, "never downloaded"),
        (
            "monai:HoVerNet",
            {"pretrained_url": "file:///etc/passwd"},
            "never downloaded or read; leave .* pretrained_url out",
        ),
        ("nowhere.at_all:Net", {}, "cannot import 'nowhere.at_all'"),
        ("subprocess:Popen", {"args": ["true"]}, "code of 'subprocess', which nobody here has permitted; a site"),
        ("builtins:eval", {"source": "1"}, "which nobody here has permitted"),
        ("test_factory:Popen", {"args": ["true"]}, "it is subprocess's, which 'test_factory' only imports"),
        ("test_factory:Bare", {"width": nn.ReLU}, "numbers, words, true, false, null and lists, not <class"),
        ("test_factory:Bare", {"width": [{"a": {1, 2}}]}, r"numbers, words, .* not \{1, 2\}"),
        ("monai:resnet18", {"act": "$__import__('os').system('true')"}, "is no word: letters, digits"),
        ("monai:resnet18", {"norm": ["batch", {"name": "/etc/passwd"}]}, "'/etc/passwd' is no word"),
        ("vit-tiny", {"num_heads": "os.system"}, "'os.system' is no word"),
        ("monai:Transchex", {"path_or_repo_id": "/data/site"}, "leave the model argument path_or_repo_id out"),
        ("monai:Transchex", {"filename": "model.bin"}, "leave the model argument filename out"),
        ("monai:Transchex", {}, r"monai:Transchex: it loads weights by itself \(path_or_repo_id\)"),
        ("test_factory:Bear", {}, "no class or function 'Bear'; did you mean Bare"),
        ("test_factory:VIT", {}, "no class or function 'VIT'"),
        ("test_factory:Bare", {"depth": 1}, "no model argument 'depth'; it accepts: width"),
        ("test_factory:forwarding", {"depth": 1}, "no model argument 'depth'; it accepts: width"),
        ("test_factory:explosive", {}, "RuntimeError: no way$"),
        ("test_factory:not_a_network", {}, "gives int, not a torch.nn.Module"),
    ],
)
def test_mistakes_are_named(name, model_args, message, monkeypatch, request):
    monkeypatch.syspath_prepend(request.path.parent)
    permit("nowhere.at_all")
    with pytest.raises(UserError, match=message) as caught:
        build(name, **model_args)
    assert "\n" not in str(caught.value)


def test_logits():
    x = torch.zeros(2, 3)
    assert logits(x) is logits((x, [])) is logits([x]) is x
    for wrong in ({"logits": x}, (), [[x]], None):
        with pytest.raises(UserError, match="must return its logits"):
            logits(wrong)


def test_rows_name_what_can_be_built():
    rows = {row.name: row for row in model_rows()}
    assert {"monai:CLASS", "package.module:callable"} < rows.keys()
    for name, row in rows.items():
        if ":" not in name and name != "alexnet-bn":
            shape = tuple(map(int, row.input.split("x")))
            assert logits(build(name, shape)(torch.zeros(2, *shape))).shape[:2] == (2, 5)


@pytest.mark.parametrize("name", ["lenet5", "monai:resnet18"])
def test_pooling(name):
    assert not isinstance(build_model(name, in_channels=1, num_classes=5, image_size=28, pooling="mean"), BagAttention)
    model = build_model(name, in_channels=1, num_classes=5, image_size=28, pooling="attention")
    assert isinstance(model, BagAttention)
    assert model(torch.zeros(2, 3, 1, 28, 28)).shape == (2, 5)


def test_unknown_pooling():
    with pytest.raises(UserError, match="unknown pooling 'max': use mean or attention"):
        build_model("lenet5", in_channels=1, num_classes=5, image_size=28, pooling="max")


def test_the_same_seed_gives_the_same_weights():
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(build("lenet5").state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_importing_is_light():
    code = "import sys, medpfl.models; print([m for m in ('monai', 'torchvision', 'nvflare') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
