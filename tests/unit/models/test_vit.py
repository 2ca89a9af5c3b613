import pytest
import torch
from monai.networks.nets import ViT
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.layers import weighted_layers
from medpfl.models import build_model
from medpfl.models.vit import vit_small, vit_tiny


def parameters(channels, classes, patch, patches, width, layers, mlp):
    """Of a MONAI ViT: the original's, without a position of the class token, with a norm a block that it never uses."""
    embedding = channels * patch**2 * width + width + patches * width + width
    attention = 3 * (width**2 + width) + width**2 + width
    block = attention + 2 * width * mlp + mlp + width + 3 * 2 * width
    return embedding + layers * block + 2 * width + (width + 1) * classes


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: vit_small(num_classes=10), (3, 10, 16, 196, 384, 12, 1536)),
        (lambda: vit_tiny(num_classes=11), (1, 11, 4, 49, 96, 4, 192)),
        (lambda: vit_tiny(in_channels=3, num_classes=2, size=64), (3, 2, 8, 64, 96, 4, 192)),
    ],
)
def test_number_of_parameters(model, expected):
    assert sum(p.numel() for p in model().parameters()) == parameters(*expected)


def test_vit_small_is_as_large_as_deit_small():
    unused, no_position = 12 * 2 * 384, 384
    assert parameters(3, 1000, 16, 196, 384, 12, 1536) == 22_050_664 + unused - no_position


@pytest.mark.parametrize("network", [vit_small, vit_tiny])
def test_it_is_monais_own_class(network):
    model = network(num_classes=3, size=32, patch_size=16, num_layers=1)
    assert type(model) is ViT
    assert isinstance(model.classification_head, nn.Linear)
    assert model.blocks[0].attn.num_heads == 6
    assert model.blocks[0].attn.qkv.bias is not None
    assert model.patch_embedding.pos_embed_type == "learnable"
    assert weighted_layers(model)[-1] == ["classification_head.weight", "classification_head.bias"]


@pytest.mark.parametrize(
    ("size", "patch"),
    [(28, (4, 4)), (32, (4, 4)), (64, (8, 8)), (8, (1, 1)), (9, (3, 3)), (26, (13, 13)), ((28, 64), (4, 8))],
)
def test_patches_of_vit_tiny(size, patch):
    assert vit_tiny(num_classes=2, size=size, num_layers=1).patch_embedding.patch_embeddings.kernel_size == patch


def test_everything_can_be_overridden():
    sizes = {"patch_size": [7, 14], "hidden_size": 24, "num_layers": 2, "num_heads": 3, "mlp_dim": 40}
    for name in ("vit-small", "vit-tiny"):
        model = build_model(name, in_channels=1, num_classes=2, image_size=28, model_args=sizes)
        assert model.patch_embedding.patch_embeddings.kernel_size == (7, 14)
        assert [block.attn.num_heads for block in model.blocks] == [3, 3]
        assert model.blocks[0].mlp.linear1.weight.shape == (40, 24)


def test_it_learns():
    torch.manual_seed(0)
    model = vit_tiny(num_classes=2, num_layers=1)
    x, y = torch.randn(8, 1, 28, 28), torch.tensor([0, 1] * 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(x)[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == ["blocks.0.norm_cross_attn.weight", "blocks.0.norm_cross_attn.bias"]


@pytest.mark.parametrize(
    ("network", "arguments", "message"),
    [
        (
            vit_small,
            {"size": (100, 90)},
            "patches of 16x16 pixels, which do not divide 100x90: "
            "use images of 96x80 or 112x96 pixels, or --model-arg patch_size=10$",
        ),
        (vit_small, {"size": 29}, "do not divide 29x29: use images of 16x16 or 32x32 pixels$"),
        (vit_small, {"size": 8}, "do not divide 8x8: use images of 16x16 pixels, or --model-arg patch_size=4$"),
        (vit_tiny, {"patch_size": 5}, "vit-tiny divides .* 28x28: use images of 25x25 or 30x30 .*patch_size=4$"),
        (
            vit_tiny,
            {"size": 29},
            "no patch that divides images of 29x29 .* 2 to 8 a side: use images of 28x28 or 30x30",
        ),
        (vit_tiny, {"size": (28, 31)}, "use images of 28x30 or 28x32 pixels$"),
        (vit_tiny, {"size": 1}, "use images of 2x2 pixels$"),
        (vit_tiny, {"patch_size": (4, 4, 4)}, r"patch_size is one positive number or two, got \(4, 4, 4\)"),
        (vit_tiny, {"patch_size": 0}, "patch_size is one positive number or two, got 0"),
        (vit_tiny, {"size": (32, 32, 32)}, "2-D images"),
    ],
)
def test_refusals(network, arguments, message):
    with pytest.raises(UserError, match=message):
        network(num_classes=2, **arguments)
