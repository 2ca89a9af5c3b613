"""Mean and variance per channel of layer inputs over a site's data, pooled exactly.

FedAP's similarity rests on them (Lu et al., section 3.4): the input of every batch-norm layer, or of the
classification layer only (d-FedAP). Batches are combined with Chan's update in float64, so that the answer does not
depend on the batch size; batch norm's own running statistics, with their momentum, are another thing (f-FedAP).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from medpfl.algorithms.base import Value
from medpfl.messages import STATISTICS
from medpfl.models.layers import batch_norm_layers, classification_layer
from medpfl.site.data import SiteData
from medpfl.site.privacy_noise import NoiseSource
from medpfl.site.private_statistics import private_statistics


class _Moments:
    """Count, mean and sum of squared deviations per channel, updated batch by batch (Chan et al. 1979)."""

    def __init__(self, channel_dim: int) -> None:
        self.channel_dim = channel_dim
        self.count, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, x: Tensor) -> None:
        flat = x.detach().double().movedim(self.channel_dim, 0).flatten(1)
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
    model: nn.Module, layers: Mapping[str, nn.Module], batches: Iterable[Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and (biased) variance of every channel of the layers' inputs, with the model in eval mode.

    Args:
        model: run on every batch; its mode is restored.
        layers: modules of the model by path; a layer's input is (B, channels, ...), a linear one's (B, ..., channels).
        batches: model inputs.

    Returns:
        By path: mean and variance, float64, shape (channels,), on the CPU; of the layers that a batch reached.
    """
    # A linear layer's channels come last, also where it acts on a sequence of tokens.
    moments = {path: _Moments(-1 if isinstance(layer, nn.Linear) else 1) for path, layer in layers.items()}
    with ExitStack() as undo, torch.inference_mode():
        for path, layer in layers.items():
            handle = layer.register_forward_pre_hook(lambda _, inputs, m=moments[path]: m.add(inputs[0]))
            undo.callback(handle.remove)
        undo.callback(model.train, model.training)
        model.eval()
        for batch in batches:
            model(batch)
    return {path: (m.mean.cpu(), (m.squares / m.count).cpu()) for path, m in moments.items() if m.count}


def statistics_under(
    kind: str, model: nn.Module, data: SiteData, settings: Mapping[str, Value], source: NoiseSource
) -> dict[str, tuple[Tensor, Tensor]]:
    """What FedAP's similarity rests on: statistics of layers' inputs over the training data.

    Args:
        kind: ``batch-norm``: of every batch-norm layer; ``classifier``: of the classification layer.
        model: f.
        data: its training part is used.
        settings: with ``statistics_epsilon`` the statistics are noised (:mod:`medpfl.site.private_statistics`).
        source: of the noise.

    Returns:
        As :func:`input_statistics`, of all those layers: one that the model holds and does not use has zeros, the same
        at every site, so that it adds nothing to a distance. Empty if none is used.

    Raises:
        StateError: the site has too few patients for the noise.
    """
    layers = _layers(kind, model)
    if settings.get("statistics_epsilon"):
        found = private_statistics(model, layers, data, settings, source)
    else:
        found = input_statistics(model, layers, training_inputs(data))
    return {path: found[path] if path in found else _zeros(layer) for path, layer in layers.items()} if found else {}


def _zeros(layer: nn.Module) -> tuple[Tensor, Tensor]:
    n = _channels(layer)
    return torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)


def _channels(layer: nn.Module) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else layer.num_features


def statistics_shapes(kind: str, model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the statistics that a site's answer holds: they follow from the model alone.

    Args:
        kind: ``batch-norm``, ``classifier`` (:func:`statistics_under`) or ``running`` (:func:`running_statistics`).
        model: f, or the run's model for ``running``.

    Returns:
        By the name under which they travel (``statistics/LAYER/mean`` and ``.../variance``): (channels,).
    """
    return {
        f"{STATISTICS}{path}/{which}": (_channels(layer),)
        for path, layer in _layers(kind, model).items()
        for which in ("mean", "variance")
    }


def _layers(kind: str, model: nn.Module) -> dict[str, nn.Module]:
    if kind == "classifier":
        return dict([classification_layer(model)])
    layers = batch_norm_layers(model)
    if kind == "running":
        return {k: m for k, m in layers.items() if m.running_mean is not None and m.running_var is not None}
    return layers


def training_inputs(data: SiteData) -> Iterator[Tensor]:
    """The inputs of the training part, in batches of about 256 images."""
    at_once = max(1, min(256 // data.images_per_sample, data.samples("train")))
    return (x for x, _ in data.batches("train", at_once))


def running_statistics(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Running mean and variance of every batch-norm layer that keeps them, float64, on the CPU (f-FedAP)."""
    return {
        path: (layer.running_mean.double().cpu(), layer.running_var.double().cpu())
        for path, layer in _layers("running", model).items()
    }
