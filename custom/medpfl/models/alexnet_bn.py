"""AlexNet with batch norm, the network of FedAP's experiments on chest X-rays."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from medpfl.models.shapes import pair, require


class AlexNetBN(nn.Module):
    """AlexNet (Krizhevsky, arXiv:1404.5997) with batch norm after every layer but the last.

    As in Lu et al., Personalized federated learning with adaptive batchnorm for healthcare (FedAP), IEEE Transactions
    on Big Data, 2022.

    Args:
        in_channels: channels of the images.
        num_classes: classes.
        size: height and width of the images, one number for a square; at least 63. The weights do not depend on it.

    Shape:
        (B, in_channels, size, size) to logits (B, num_classes).

    Raises:
        UserError: the images are too small or not 2-D.
    """

    def __init__(self, *, in_channels: int = 3, num_classes: int, size: int | Sequence[int] = 224) -> None:
        super().__init__()
        require(pair(size), (63, 63), "alexnet-bn")
        self.conv1 = nn.Conv2d(in_channels, 64, 11, stride=4, padding=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)
        self.bn2 = nn.BatchNorm2d(192)
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)
        self.bn3 = nn.BatchNorm2d(384)
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)
        self.bn4 = nn.BatchNorm2d(256)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        self.bn5 = nn.BatchNorm2d(256)
        self.pool = nn.MaxPool2d(3, 2)
        self.average = nn.AdaptiveAvgPool2d(6)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(256 * 6 * 6, 4096)
        self.bn6 = nn.BatchNorm1d(4096)
        self.fc2 = nn.Linear(4096, 4096)
        self.bn7 = nn.BatchNorm1d(4096)
        self.fc3 = nn.Linear(4096, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.bn3(self.conv3(x)))
        x = self.relu(self.bn4(self.conv4(x)))
        x = self.pool(self.relu(self.bn5(self.conv5(x))))
        x = self.average(x).flatten(1)
        x = self.relu(self.bn6(self.fc1(x)))
        x = self.relu(self.bn7(self.fc2(x)))
        return self.fc3(x)
