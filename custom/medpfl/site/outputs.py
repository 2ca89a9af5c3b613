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
    """Refuses classes or masks with a value that the network has no output for, and samples that it does not take.

    Loaders are not read for it: from now on they say it themselves, at the batch that has such a label.

    Args:
        model: on the device, with any values; its output is (B, classes, ...). It is left in training mode.
        data: the site's; where it has no sample there is nothing to see.
        learned: the task.

    Raises:
        LabelOutside: there is one; nothing has been computed with it.
    """
    if (some := _some(data)) is None:
        return
    model.eval()
    try:
        with looked_at(), torch.inference_mode():
            outputs = logits(model(some)).shape[1]
    finally:
        model.train()
    if learned.labels == "labels":  # each is of an output of its own
        return
    if isinstance(data, SiteLoaders):
        data.outputs = outputs
        return
    for part in PARTS:
        for labels in _labels(data, part):
            require_inside(labels, outputs)


def _some(data: SiteData) -> Tensor | None:
    """A few of the site's inputs, on the device; None if it has no samples."""
    if isinstance(data, SiteLoaders):
        with looked_at():
            return data.some_inputs()
    return next((x for part in PARTS if data.samples(part) for x, _ in data.batches(part, 2)), None)


def _labels(data: SiteData, part: Part) -> Iterable[Tensor]:
    return data.masks[part] if isinstance(data, MaskedVolumes) else (data.labels[part],)
