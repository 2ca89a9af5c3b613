"""The convolutional network of FedImpres' experiments on BloodMNIST."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from medpfl.models.pooling import MaxPool2x2
from medpfl.models.shapes import pair, require


class ImpressionCNN(nn.Module):
    """Three convolutions and three linear layers, with batch norm after all but the last two.

    From the FedImpres paper: Federated Impression for Learning with Distributed Heterogeneous Data, 2024.

    Args:
        in_channels: channels of the images.
        num_classes: classes.
        size: height and width of the images, one number for a square; at least 4.

    Shape:
        (B, in_channels, size, size) to logits (B, num_classes).

    Raises:
        UserError: the images are too small or not 2-D.
    """

    def __init__(self, *, in_channels: int = 3, num_classes: int, size: int | Sequence[int] = 32) -> None:
        super().__init__()
        height, width = pair(size)
        require((height, width), (4, 4), "impression-cnn")
        self.conv1 = nn.Conv2d(in_channels, 64, 5, padding=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.bn2 = nn.BatchNorm2d(64)
        self.conv3 = nn.Conv2d(64, 128, 5, padding=2)
        self.bn3 = nn.BatchNorm2d(128)
        self.pool = MaxPool2x2()
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(128 * (height // 4) * (width // 4), 2048)
        self.bn4 = nn.BatchNorm1d(2048)
        self.fc2 = nn.Linear(2048, 512)
        self.fc3 = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.bn3(self.conv3(x)))
        x = self.relu(self.bn4(self.fc1(x.flatten(1))))
        x = self.relu(self.fc2(x))
        return self.fc3(x)
