"""Every label has an output of the network, which is seen before it reaches a GPU: the process would not survive it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from medpfl.core.masked_data import MaskedVolumes
from medpfl.core.own_loaders import looked_at, require_inside
from medpfl.core.site_data import PARTS, Part, SiteData, SiteLoaders
from medpfl.models import logits
from medpfl.tasks.task import Task


def require_outputs(model: nn.Module, data: SiteData, learned: Task) -> None:
    """Refuses classes or masks with a value that the network has no output for.

    Loaders are not read for it: on a GPU they say it themselves from now on, at the batch that has such a label, and on
    a CPU the loss does.

    Args:
        model: on the device, with any values; its output is (B, classes, ...). It is left in training mode.
        data: the site's; where it has no sample there is nothing to see.
        learned: the task.

    Raises:
        LabelOutside: there is one; nothing has been computed with it.
    """
    if learned.labels == "labels":  # each is of an output of its own
        return
    if isinstance(data, SiteLoaders):
        with looked_at():
            some = None if next(model.parameters()).device.type == "cpu" else data.some_inputs()
    else:
        some = next((x for part in PARTS if data.samples(part) for x, _ in data.batches(part, 2)), None)
    if some is not None:
        require_labels(data, outputs_of(model, some))


def require_labels(data: SiteData, outputs: int) -> None:
    """The same, where the number of outputs is known."""
    if isinstance(data, SiteLoaders):
        data.outputs = outputs
        return
    for part in PARTS:
        for labels in _labels(data, part):
            require_inside(labels, outputs)


def outputs_of(model: nn.Module, inputs: Tensor) -> int:
    """How many the network has, by a pass of a few inputs in eval mode; it is left in training mode."""
    model.eval()
    try:
        # Not in inference mode: what a network keeps of a pass, as a grid of positions, it trains with.
        with looked_at(), torch.no_grad():
            return logits(model(inputs)).shape[1]
    finally:
        model.train()


def _labels(data: SiteData, part: Part) -> Iterable[Tensor]:
    return data.masks[part] if isinstance(data, MaskedVolumes) else (data.labels[part],)
