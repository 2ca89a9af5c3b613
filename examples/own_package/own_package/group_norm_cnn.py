"""A small CNN with group norm, whose statistics are an image's own: nothing of other images goes into a prediction.

Wu, He: Group normalization. ECCV 2018.
"""

from __future__ import annotations

from torch import Tensor, nn


class GroupNormCNN(nn.Module):
    """Two convolutions and a linear layer.

    Args:
        in_channels: of the images; medpfl gives it, as the data are.
        num_classes: likewise.
        width: channels of the first convolution, a multiple of 4 (``--model-arg width=16``).
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 2, width: int = 8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.classifier = nn.Linear(2 * width * 16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] -> logits (B, classes)."""
        return self.classifier(self.features(x).flatten(1))
