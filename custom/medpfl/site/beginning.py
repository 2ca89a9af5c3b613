"""What a site that joins begins with where the run has nothing for it: heads like the shared ones, own statistics."""

from __future__ import annotations

import torch
from torch import nn

from medpfl.core.attention import attention_blocks, head_entries
from medpfl.core.layers import batch_norm_layers
from medpfl.core.moments import input_statistics, training_inputs
from medpfl.core.parameters import ParameterSplit
from medpfl.core.site_data import SiteData


def repeat_shared_heads(model: nn.Module, split: ParameterSplit) -> None:
    """Gives personal head i, of P, the weights of shared head i modulo their number, in every attention block."""
    state, blocks = model.state_dict(), attention_blocks(model)
    with torch.no_grad():
        for path, (personal, heads) in split.heads.items():
            for head in range(personal):
                source = personal + head % (heads - personal)
                to, of = (head_entries(blocks[path], range(h, h + 1)) for h in (head, source))
                for name, (dim, rows) in to.items():
                    target = state[f"{path}.{name}" if path else name]
                    index = torch.tensor(of[name][1], device=target.device)
                    taken = target.index_select(dim, index)
                    target.index_copy_(dim, torch.tensor(rows, device=target.device), taken)


def take_statistics(model: nn.Module, data: SiteData, paths: set[str] | None = None) -> None:
    """Sets batch norm's running statistics to those of its inputs over the training data, pooled exactly.

    The variance is the unbiased one, as torch's own running variance is.

    Layer after layer in the order of a forward pass, so that each sees what it will see in use.

    Args:
        model: changed in place.
        data: its training part is used.
        paths: of the layers; by default all.
    """
    layers = {path: layer for path, layer in batch_norm_layers(model).items() if layer.running_mean is not None}
    if paths is not None:
        layers = {path: layer for path, layer in layers.items() if path in paths}
    if len(layers) > 1:
        order = batch_norm_layers(model, next(training_inputs(data)))
        layers = {path: layer for path, layer in order.items() if path in layers}
    for path, layer in layers.items():
        for mean, variance in input_statistics(model, {path: layer}, training_inputs(data), unbiased=True).values():
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
