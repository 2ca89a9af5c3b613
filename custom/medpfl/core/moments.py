"""Mean and variance per channel of layer inputs over a site's data, pooled exactly.

Batches are combined with Chan's update in float64, so that the answer does not depend on the batch size; batch norm's
own running statistics, with their momentum, are another thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from medpfl.core.layers import evaluating
from medpfl.core.site_data import SiteData, looked_at_once


class _Moments:
    """Count, mean and sum of squared deviations per channel, updated batch by batch (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, flat: Tensor) -> None:
        """Of (channels, n) float64."""
        n, mean = flat.shape[1], flat.mean(1)
        squares = (flat - mean[:, None]).square().sum(1)
        if self.count == 0:
            self.count, self.mean, self.squares = n, mean, squares
            return
        total = self.count + n
        delta = mean - self.mean
        self.squares = self.squares + squares + delta.square() * (self.count * n / total)
        self.mean = self.mean + delta * (n / total)
        self.count = total


def input_statistics(
    model: nn.Module, layers: Mapping[str, nn.Module], batches: Iterable[Tensor], *, unbiased: bool = False
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and variance of every channel of the layers' inputs, with the model in eval mode.

    Args:
        model: run on every batch; its mode is restored.
        layers: modules of the model by path; a layer's input is (B, channels, ...), a linear one's (B, ..., channels).
        batches: model inputs.
        unbiased: divide by the number of values less one, as batch norm's running variance does.

    Returns:
        By path: mean and variance, float64, shape (channels,), on the CPU; of the layers that a batch reached.
    """
    moments = {path: _Moments() for path in layers}
    with ExitStack() as undo, evaluating(model), torch.inference_mode():
        for path, layer in layers.items():
            handle = layer.register_forward_pre_hook(lambda at, given, m=moments[path]: m.add(by_channel(at, given[0])))
            undo.callback(handle.remove)
        for batch in batches:
            model(batch)
    fewer = int(unbiased)
    return {path: (m.mean.cpu(), (m.squares / max(1, m.count - fewer)).cpu()) for path, m in moments.items() if m.count}


def channels_of_input(layer: nn.Module) -> int:
    """How many channels a batch-norm or linear layer's input has."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.num_features


def by_channel(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer's input (B, channels, ...), a linear one's (B, ..., channels), as (channels, values) float64."""
    # A linear layer's channels come last, also where it acts on a sequence of tokens.
    return x.detach().double().movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1)


def training_inputs(data: SiteData) -> Iterator[Tensor]:
    """The inputs of the training part, in batches of about 256 images, or of as many patches as memory has room for."""
    return (x for x, _ in data.batches("train", looked_at_once(data)))
