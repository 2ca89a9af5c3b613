"""A fully convolutional network for time series."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from medpfl.core.errors import UserError


class FCN1d(nn.Module):
    """Three convolutions along time with batch norm, the mean over time, and one linear layer.

    Wang, Yan, Oates, Time series classification from scratch with deep neural networks: a strong baseline, IJCNN 2017:
    kernels of 8, 5 and 3 samples, 128, 256 and 128 filters. Zeros at both ends keep the length (a kernel of 8 adds a
    sample).

    Args:
        in_channels: channels of the series.
        num_classes: classes.
        size: (T,), samples of a window; the weights do not depend on it.
        width: filters of the first and last convolution; the middle one has twice as many. The paper has 128.

    Shape:
        (B, in_channels, T) to logits (B, num_classes).

    Raises:
        UserError: the data are no series.
    """

    def __init__(
        self, *, in_channels: int = 1, num_classes: int, size: int | Sequence[int] = (200,), width: int = 128
    ) -> None:
        super().__init__()
        if not isinstance(size, int) and len(size) != 1:
            raise UserError(f"fcn-1d takes time series (channels, samples), got images of size {list(size)}")
        widths = (in_channels, width, 2 * width, width)
        blocks = zip(widths, widths[1:], (8, 5, 3), strict=False)
        self.blocks = nn.Sequential(*(_block(before, behind, kernel) for before, behind, kernel in blocks))
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of windows."""
        return self.fc(self.blocks(x).mean(-1))


def _block(before: int, behind: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv1d(before, behind, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm1d(behind), nn.ReLU())
