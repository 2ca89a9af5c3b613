import pytest
import torch
from torch import nn

from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers, weighted_layers
from medpfl.models.cifar_resnet import CifarResNet, ZeroPaddedShortcut, resnet32, resnet110


@pytest.mark.parametrize(("network", "layers", "parameters"), [(resnet32, 32, 464_154), (resnet110, 110, 1_727_962)])
def test_size_is_that_of_the_paper(network, layers, parameters):
    model = network(num_classes=10)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(weighted_layers(model)) == layers
    assert weighted_layers(model)[-1] == ["fc.weight", "fc.bias"]
    assert len(batch_norm_layers(model)) == layers - 1


def test_stages():
    convs = [m for m in resnet32(num_classes=10).modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convs] == [16] * 11 + [32] * 10 + [64] * 10
    assert [i for i, m in enumerate(convs) if m.stride == (2, 2)] == [11, 21]
    assert {m.kernel_size for m in convs} == {(3, 3)}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 16), (3, 17, 30)])
def test_sizes(shape):
    model = CifarResNet(8, in_channels=shape[0], num_classes=4, size=shape[1:])
    output = model(torch.randn(2, *shape))
    assert output.shape == (2, 4)
    output.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_shortcut_pads_with_zeros():
    x = torch.arange(2.0 * 3 * 5).reshape(1, 2, 3, 5).requires_grad_()
    output = ZeroPaddedShortcut(2)(x)
    assert output[0].tolist() == [
        [[0, 2, 4], [10, 12, 14]],
        [[15, 17, 19], [25, 27, 29]],
        [[0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0]],
    ]
    output.sum().backward()
    assert x.grad[0, 0].tolist() == [[1, 0, 1, 0, 1], [0] * 5, [1, 0, 1, 0, 1]]


def test_without_residuals_the_input_goes_through():
    """With the last batch norm of every block at zero, a stage is its shortcuts alone."""
    model = CifarResNet(14, num_classes=2).eval()
    for name, module in batch_norm_layers(model).items():
        if name.endswith("bn2"):
            nn.init.zeros_(module.weight)
    x = torch.rand(1, 16, 8, 8)
    expected = torch.cat([x[..., ::2, ::2], torch.zeros(1, 16, 4, 4)], 1)
    assert model.layer1(x).equal(x)
    assert model.layer2(x).equal(expected)


def test_refusals():
    with pytest.raises(UserError, match="resnet110 takes images of at least 16x16 pixels, got 16x15"):
        resnet110(num_classes=2, size=(16, 15))
    with pytest.raises(UserError, match=r"2-D images, got the image size \[32, 32, 32\]"):
        resnet32(num_classes=2, size=(32, 32, 32))
    for depth in (2, 18):
        with pytest.raises(ValueError, match=f"6n \\+ 2 .*got {depth}"):
            CifarResNet(depth, num_classes=2)
