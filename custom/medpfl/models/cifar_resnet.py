"""The residual networks of He et al. for small images: ResNet-32 and ResNet-110."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from medpfl.models.shapes import pair, require

_WIDTHS = (16, 32, 64)


class CifarResNet(nn.Module):
    """A residual network of 6n + 2 layers in three stages of 16, 32 and 64 channels.

    He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2: a 3 x 3 convolution, n
    blocks of two at each of three resolutions, global average pooling and one linear layer; shortcuts of option A,
    which have no parameters.

    Args:
        depth: layers, 6n + 2.
        in_channels: channels of the images.
        num_classes: classes.
        size: height and width of the images, one number for a square; at least 16. The weights do not depend on it.

    Shape:
        (B, in_channels, size, size) to logits (B, num_classes).

    Raises:
        UserError: the images are too small or not 2-D.
        ValueError: the depth is not 6n + 2.
    """

    def __init__(self, depth: int, *, in_channels: int = 3, num_classes: int, size: int | Sequence[int] = 32) -> None:
        super().__init__()
        require(pair(size), (16, 16), f"resnet{depth}")
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2 (8, 14, 20, ...), got {depth}")
        self.conv1 = nn.Conv2d(in_channels, _WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.relu = nn.ReLU()
        blocks = (depth - 2) // 6
        self.layer1 = _stage(_WIDTHS[0], _WIDTHS[0], blocks)
        self.layer2 = _stage(_WIDTHS[0], _WIDTHS[1], blocks)
        self.layer3 = _stage(_WIDTHS[1], _WIDTHS[2], blocks)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(_WIDTHS[2], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.average(x).flatten(1))


class ZeroPaddedShortcut(nn.Module):
    """He et al.'s option A: every other pixel, and zeros for the channels that are new.

    ``shortcut_type="A"`` of MONAI's ``ResNet`` gives the same values but no gradient.

    Args:
        channels: channels to add.

    Shape:
        (B, C, H, W) to (B, C + channels, ceil(H / 2), ceil(W / 2)).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.pad(x[..., ::2, ::2], (0, 0, 0, 0, 0, self.channels))


def resnet32(*, in_channels: int = 3, num_classes: int, size: int | Sequence[int] = 32) -> CifarResNet:
    """:class:`CifarResNet` of 32 layers (n = 5)."""
    return CifarResNet(32, in_channels=in_channels, num_classes=num_classes, size=size)


def resnet110(*, in_channels: int = 3, num_classes: int, size: int | Sequence[int] = 32) -> CifarResNet:
    """:class:`CifarResNet` of 110 layers (n = 18)."""
    return CifarResNet(110, in_channels=in_channels, num_classes=num_classes, size=size)


def _stage(before: int, width: int, blocks: int) -> nn.Sequential:
    from monai.networks.nets.resnet import ResNetBlock  # Importing MONAI takes seconds, so only who asks for it waits.

    grows = width > before
    first = ResNetBlock(
        before,
        width,
        spatial_dims=2,
        stride=2 if grows else 1,
        downsample=ZeroPaddedShortcut(width - before) if grows else None,
    )
    return nn.Sequential(first, *(ResNetBlock(width, width, spatial_dims=2) for _ in range(blocks - 1)))
