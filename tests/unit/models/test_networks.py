from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medpfl.core.errors import UserError
from medpfl.models.alexnet_bn import AlexNetBN
from medpfl.models.impression_cnn import ImpressionCNN
from medpfl.models.lenet5 import LeNet5BN
from medpfl.models.pamap2_cnn import Pamap2CNN
from medpfl.models.shapes import pair


@pytest.mark.parametrize(
    ("network", "shape", "flat", "batch_norms"),
    [
        (partial(LeNet5BN, num_classes=11), (1, 28, 28), 256, 2),
        (partial(LeNet5BN, in_channels=3, num_classes=4, size=(64, 32)), (3, 64, 32), 16 * 13 * 5, 2),
        (partial(LeNet5BN, num_classes=2, size=16), (1, 16, 16), 16, 2),
        pytest.param(partial(AlexNetBN, num_classes=4), (3, 224, 224), 9216, 7, marks=pytest.mark.slow),
        (partial(AlexNetBN, in_channels=1, num_classes=4, size=63), (1, 63, 63), 9216, 7),
        (partial(Pamap2CNN, num_classes=18), (27, 1, 200), 1408, 2),
        (partial(Pamap2CNN, in_channels=9, num_classes=6, size=(1, 28)), (9, 1, 28), 32, 2),
        (partial(ImpressionCNN, num_classes=8), (3, 32, 32), 8192, 4),
    ],
)
def test_networks_are_those_of_the_papers(network, shape, flat, batch_norms):
    network = network()
    assert network.fc1.in_features == flat
    assert sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules()) == batch_norms
    last = [m for m in network.modules() if isinstance(m, nn.Linear)][-1]
    output = network(torch.zeros(2, *shape))
    assert output.shape == (2, last.out_features)
    output.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize(
    ("network", "channels", "linear"),
    [
        (partial(LeNet5BN, num_classes=11), [1, 6, 16], [256, 120, 84, 11]),
        (partial(Pamap2CNN, num_classes=18), [27, 16, 32], [1408, 64, 18]),
        (partial(ImpressionCNN, num_classes=8), [3, 64, 64, 128], [8192, 2048, 512, 8]),
        (partial(AlexNetBN, num_classes=3), [3, 64, 192, 384, 256, 256], [9216, 4096, 4096, 3]),
    ],
)
def test_widths(network, channels, linear):
    network = network()
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    dense = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [convs[0].in_channels, *(m.out_channels for m in convs)] == channels
    assert [dense[0].in_features, *(m.out_features for m in dense)] == linear


def test_alexnets_kernels_strides_and_padding():
    """Conv2D(in, out, kernel, stride, padding) and MaxPool2D(kernel, stride) as FedImpres' supplement prints them."""
    network = AlexNetBN(num_classes=2)
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels, *m.kernel_size, *m.stride, *m.padding) for m in convs] == [
        (3, 64, 11, 11, 4, 4, 2, 2),
        (64, 192, 5, 5, 1, 1, 2, 2),
        (192, 384, 3, 3, 1, 1, 1, 1),
        (384, 256, 3, 3, 1, 1, 1, 1),
        (256, 256, 3, 3, 1, 1, 1, 1),
    ]
    assert all(m.dilation == (1, 1) and m.groups == 1 and m.bias is not None for m in convs)
    sizes = []
    for module in (*convs, network.pool, network.average):
        module.register_forward_hook(lambda m, inputs, output: sizes.append(output.shape[-1]))
    network.eval()(torch.zeros(1, 3, 224, 224))
    # 224 -> (224 + 2 * 2 - 11) // 4 + 1 = 55 -> 27, 27 -> 13, 13, 13, 13 -> 6, 6
    assert sizes == [55, 27, 27, 13, 13, 13, 13, 6, 6]


def test_alexnet_as_written_down_in_functions():
    torch.manual_seed(0)
    network, x = AlexNetBN(num_classes=2, size=63).eval(), torch.randn(2, 3, 63, 63)
    state, y = network.state_dict(), x

    def norm(y, k):
        mean, variance = state[f"bn{k}.running_mean"], state[f"bn{k}.running_var"]
        shape = (1, -1, *[1] * (y.dim() - 2))
        return torch.relu((y - mean.view(shape)) / torch.sqrt(variance.view(shape) + 1e-5))

    for k, (stride, padding, pooled) in enumerate([(4, 2, 1), (1, 2, 1), (1, 1, 0), (1, 1, 0), (1, 1, 1)], start=1):
        y = norm(F.conv2d(y, state[f"conv{k}.weight"], state[f"conv{k}.bias"], stride, padding), k)
        y = F.max_pool2d(y, 3, 2) if pooled else y
    y = F.adaptive_avg_pool2d(y, 6).flatten(1)
    for k in (1, 2):
        y = norm(y @ state[f"fc{k}.weight"].T + state[f"fc{k}.bias"], k + 5)
    expected = y @ state["fc3.weight"].T + state["fc3.bias"]
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "size", "message"),
    [
        (LeNet5BN, 15, "at least 16x16 pixels, got 15x15"),
        (AlexNetBN, (224, 62), "at least 63x63 pixels, got 224x62"),
        (Pamap2CNN, (1, 27), "at least 1x28 pixels, got 1x27"),
        (ImpressionCNN, 3, "at least 4x4 pixels"),
        (LeNet5BN, (28, 28, 28), r"2-D images, got the image size \[28, 28, 28\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(network, size, message):
    with pytest.raises(UserError, match=message):
        network(num_classes=2, size=size)


@pytest.mark.parametrize(("size", "other"), [([128], "time series .* fcn-1d"), ([8, 8, 8], "volumes .*:DenseNet121")])
def test_what_is_no_picture_is_advised_a_network_of_its_kind(size, other):
    with pytest.raises(UserError, match=f"takes 2-D images, .* for {other}$"):
        pair(size)
