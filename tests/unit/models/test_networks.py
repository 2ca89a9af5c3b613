import pytest
import torch
from torch import nn

from medpfl.core.errors import UserError
from medpfl.models.alexnet_bn import AlexNetBN
from medpfl.models.impression_cnn import ImpressionCNN
from medpfl.models.lenet5 import LeNet5BN
from medpfl.models.pamap2_cnn import Pamap2CNN


@pytest.mark.parametrize(
    ("network", "shape", "flat", "batch_norms"),
    [
        (LeNet5BN(num_classes=11), (1, 28, 28), 256, 2),
        (LeNet5BN(in_channels=3, num_classes=4, size=(64, 32)), (3, 64, 32), 16 * 13 * 5, 2),
        (LeNet5BN(num_classes=2, size=16), (1, 16, 16), 16, 2),
        (AlexNetBN(num_classes=4), (3, 224, 224), 9216, 7),
        (AlexNetBN(in_channels=1, num_classes=4, size=63), (1, 63, 63), 9216, 7),
        (Pamap2CNN(num_classes=18), (27, 1, 200), 1408, 2),
        (Pamap2CNN(in_channels=9, num_classes=6, size=(1, 28)), (9, 1, 28), 32, 2),
        (ImpressionCNN(num_classes=8), (3, 32, 32), 8192, 4),
    ],
)
def test_networks_are_those_of_the_papers(network, shape, flat, batch_norms):
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
        (LeNet5BN(num_classes=11), [1, 6, 16], [256, 120, 84, 11]),
        (Pamap2CNN(num_classes=18), [27, 16, 32], [1408, 64, 18]),
        (ImpressionCNN(num_classes=8), [3, 64, 64, 128], [8192, 2048, 512, 8]),
        (AlexNetBN(num_classes=3), [3, 64, 192, 384, 256, 256], [9216, 4096, 4096, 3]),
    ],
)
def test_widths(network, channels, linear):
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    dense = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [convs[0].in_channels, *(m.out_channels for m in convs)] == channels
    assert [dense[0].in_features, *(m.out_features for m in dense)] == linear


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
