"""What a site's similarity rests on: mean and variance per channel of layer inputs over its training data.

Lu et al., section 3.4: the input of every batch-norm layer, or of the classification layer only (d-FedAP); or batch
norm's own running statistics, with their momentum (f-FedAP).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from medpfl.algorithms.fedap.private_statistics import private_statistics
from medpfl.algorithms.fedap.similarity import LayerStatistics
from medpfl.core.channels import Entry
from medpfl.core.layers import batch_norm_layers
from medpfl.core.moments import channels_of_input, input_statistics, training_inputs
from medpfl.core.noise import NoiseSource
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.settings import Value
from medpfl.core.site_data import SiteData


def statistics_under(
    kind: str,
    model: nn.Module,
    split: ParameterSplit,
    data: SiteData,
    settings: Mapping[str, Value],
    source: NoiseSource | None,
) -> State:
    """What FedAP's similarity rests on: statistics of layers' inputs over the training data.

    Args:
        kind: ``batch-norm``: of every batch-norm layer; ``classifier``: of the classification layer.
        model: f.
        split: of its architecture; knows the layer that classifies.
        data: its training part is used.
        settings: with ``statistics_epsilon`` the statistics are noised
            (:mod:`medpfl.algorithms.fedap.private_statistics`).
        source: of the noise, where the settings have any.

    Returns:
        As :func:`statistics_entries`: of all those layers; one that the model holds and does not use has zeros, the
        same at every site, so that it adds nothing to a distance. Empty if none is used.

    Raises:
        StateError: the site has too few patients for the noise.
    """
    layers = _layers(kind, model, split)
    if settings.get("statistics_epsilon") and source is not None:
        found = private_statistics(model, layers, data, settings, source)
    else:
        found = input_statistics(model, layers, training_inputs(data))
    if not found:
        return {}
    return named_statistics({path: found.get(path) or _zeros(layer) for path, layer in layers.items()})


def _zeros(layer: nn.Module) -> tuple[Tensor, Tensor]:
    n = channels_of_input(layer)
    return torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)


def statistics_entries(kind: str, model: nn.Module, split: ParameterSplit) -> dict[str, Entry]:
    """What a site sends, which follows from the model alone.

    Args:
        kind: ``batch-norm``, ``classifier`` (:func:`statistics_under`) or ``running`` (:func:`running_statistics`).
        model: f, or the run's model for ``running``.
        split: of the architecture.

    Returns:
        By ``LAYER/mean`` and ``LAYER/variance``: (channels,) float64.
    """
    return {
        f"{path}/{which}": Entry((channels_of_input(layer),), (torch.float64,), **limits)
        for path, layer in _layers(kind, model, split).items()
        for which, limits in (("mean", {}), ("variance", {"least": 0.0}))
    }


def named_statistics(statistics: Mapping[str, tuple[Tensor, Tensor]]) -> State:
    """Layers' means and variances by the names of :func:`statistics_entries`."""
    return {
        f"{path}/{which}": value
        for path, pair in statistics.items()
        for which, value in zip(("mean", "variance"), pair, strict=True)
    }


def layers_of(tensors: State) -> LayerStatistics:
    """The reverse of :func:`named_statistics`, as arrays."""
    layers = dict.fromkeys(name.rpartition("/")[0] for name in tensors)
    return {layer: (tensors[f"{layer}/mean"].numpy(), tensors[f"{layer}/variance"].numpy()) for layer in layers}


def _layers(kind: str, model: nn.Module, split: ParameterSplit) -> dict[str, nn.Module]:
    if kind == "classifier":
        return dict([split.classification_layer(model)])
    return _keep_running(model) if kind == "running" else batch_norm_layers(model)


def _keep_running(model: nn.Module) -> dict[str, nn.Module]:
    layers = batch_norm_layers(model)
    return {k: m for k, m in layers.items() if m.running_mean is not None and m.running_var is not None}


def running_statistics(model: nn.Module) -> State:
    """Copies of the running mean and variance of every batch-norm layer that keeps them, float64, CPU (f-FedAP)."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.to("cpu", torch.float64, copy=True)

    layers = _keep_running(model)
    return named_statistics({path: (copied(m.running_mean), copied(m.running_var)) for path, m in layers.items()})
