"""Batch norm's running statistics in the sites' models beside those of the layers' inputs over the training data.

Lu et al., IEEE Trans. Big Data 2022, figure 4: where there is no pretrained model the former are taken for the latter.
To see how near they are needs the sites' models and data in one place, which only a simulation has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from medpfl.core.layers import batch_norm_layers
from medpfl.core.moments import input_statistics, training_inputs
from medpfl.core.own_loaders import NotPlain
from medpfl.engine.federation import Federation
from medpfl.models.blend import is_blend

NOT_HELD_AGAINST = "running statistics were not held against those of the inputs: "
"""How the reason begins."""
MOST_SAMPLES = 100_000
"""Training samples, of all sites, that are looked at."""
_CHANNELS = 64
"""Of a layer that are kept one by one."""
_PAIRS = ("running_mean", "mean"), ("running_deviation", "deviation")


def running_statistics(federation: Federation, models: Path) -> dict[str, Any] | str:
    """Both statistics of every batch-norm layer that keeps running ones.

    Args:
        federation: of a finished run, with the sites' data.
        models: folder with a safetensors file for each site that has a model.

    Returns:
        ``correlation``, by layer in the order of the model: over its channels, of ``mean`` and of ``deviation`` (the
        square root of the variance), mean over sites, None where no site's vary. ``channels``, of the first ``site``
        by layer, the first and the last: ``running_mean``, ``mean``, ``running_deviation`` and ``deviation`` of at most
        64 channels each. Or, in words, why it was not measured.
    """
    files = {n: file for n in federation.config.site_names if (file := models / f"{n}.safetensors").exists()}
    sites = {name: federation.source.site(name, federation.device) for name in files}
    samples = sum(data.samples("train") for data in sites.values())
    if samples > MOST_SAMPLES:
        return f"{NOT_HELD_AGAINST}the sites have {samples:,} training samples, more than {MOST_SAMPLES:,}"
    model = federation.model()
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name, file in files.items():
        state = load_file(file, device=str(federation.device))
        if is_blend(state):
            return f"{NOT_HELD_AGAINST}{name} uses two networks together"
        model.load_state_dict(state)
        layers = {p: m for p, m in batch_norm_layers(model).items() if m.running_mean is not None}
        try:
            inputs = input_statistics(model, layers, training_inputs(sites[name]))
        except NotPlain as error:
            return f"{NOT_HELD_AGAINST}{name}: {error}"
        found[name] = {p: _of_layer(layers[p].running_mean, layers[p].running_var, *inputs[p]) for p in inputs}
    if not any(found.values()):
        return f"{NOT_HELD_AGAINST}there is no model with any"
    first, layers = next((site, of) for site, of in found.items() if of)
    shown = dict.fromkeys((next(iter(layers)), next(reversed(layers))))
    return {
        "correlation": {path: _correlation([of[path] for of in found.values() if path in of]) for path in layers},
        "site": first,
        "channels": {path: {k: v[:_CHANNELS].tolist() for k, v in layers[path].items()} for path in shown},
    }


def _of_layer(running_mean: Tensor, running_var: Tensor, mean: Tensor, variance: Tensor) -> dict[str, np.ndarray]:
    tensors = running_mean, mean, running_var.sqrt(), variance.sqrt()
    names = (name for pair in _PAIRS for name in pair)
    return {name: tensor.double().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}


def _correlation(sites: list[dict[str, np.ndarray]]) -> dict[str, float | None]:
    """Pearson's over the channels, mean over the sites where both vary."""
    by_site = {
        of: [np.corrcoef(s[running], s[of])[0, 1] for s in sites if np.ptp(s[running]) > 0 and np.ptp(s[of]) > 0]
        for running, of in _PAIRS
    }
    return {of: float(np.mean(values)) if values else None for of, values in by_site.items()}
