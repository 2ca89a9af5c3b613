"""The convolutional network of FedAP's experiments on wearable sensors (PAMAP2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from medpfl.models.shapes import after, pair, require


class Pamap2CNN(nn.Module):
    """Two convolutions along time, with batch norm, and two linear layers.

    Lu et al., Personalized federated learning with adaptive batchnorm for healthcare (FedAP), IEEE Transactions on Big
    Data, 2022.

    Args:
        in_channels: sensor channels.
        num_classes: activities.
        size: (samples of a window,), or (1, samples) as its authors lay windows out; at least 28 samples.

    Shape:
        (B, in_channels, T) or (B, in_channels, 1, T), T samples as in ``size``, to logits (B, num_classes).

    Raises:
        UserError: the window is too short or not of two dimensions.
    """

    def __init__(self, *, in_channels: int = 27, num_classes: int, size: int | Sequence[int] = (1, 200)) -> None:
        super().__init__()
        height, width = pair(size if isinstance(size, int) or len(size) != 1 else (1, *size))
        require((height, width), (1, 28), "pamap2-cnn")
        width = after(after(width, 9) // 2, 9) // 2
        self.conv1 = nn.Conv2d(in_channels, 16, (1, 9))
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, (1, 9))
        self.bn2 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d((1, 2))
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(32 * height * width, 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of windows."""
        x = x.unsqueeze(2) if x.dim() == 3 else x
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)
