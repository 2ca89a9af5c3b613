"""LeNet-5 with batch norm, the network of FedAP's experiments on 28 x 28 images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from medpfl.models.pooling import MaxPool2x2
from medpfl.models.shapes import after, pair, require


class LeNet5BN(nn.Module):
    """LeNet-5 (LeCun et al., Proceedings of the IEEE 86, 1998) with batch norm after each convolution.

    As in Lu et al., Personalized federated learning with adaptive batchnorm for healthcare (FedAP), IEEE Transactions
    on Big Data, 2022.

    Args:
        in_channels: channels of the images.
        num_classes: classes.
        size: height and width of the images, one number for a square; at least 16.

    Shape:
        (B, in_channels, size, size) to logits (B, num_classes).

    Raises:
        UserError: the images are too small or not 2-D.
    """

    def __init__(self, *, in_channels: int = 1, num_classes: int, size: int | Sequence[int] = 28) -> None:
        super().__init__()
        sides = pair(size)
        require(sides, (16, 16), "lenet5")
        height, width = (after(after(side, 5) // 2, 5) // 2 for side in sides)
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.bn2 = nn.BatchNorm2d(16)
        self.pool = MaxPool2x2()
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(16 * height * width, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.fc1(x.flatten(1)))
        x = self.relu(self.fc2(x))
        return self.fc3(x)
