"""Channels last in memory, which convolutions on some devices are faster with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the dimensions of a convolution's weights."""


@contextmanager
def laid_out(model: nn.Module, *, channels_last: bool) -> Iterator[None]:
    """Inside, a network's weights lie with the channels last; afterwards as they were, so that files have one order."""
    if not channels_last:
        yield
        return
    _lay_out(model, last=True)
    try:
        yield
    finally:
        _lay_out(model, last=False)


def channels_last_of(images: Tensor) -> Tensor:
    """Images with the channels last in memory.

    Volumes are left alone: a convolution puts them in its weights' order, and bags of slices have five dimensions too.
    """
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def _lay_out(model: nn.Module, *, last: bool) -> None:
    for parameter in model.parameters():
        if parameter.ndim in _LAST:
            order = _LAST[parameter.ndim] if last else torch.contiguous_format
            parameter.data = parameter.data.contiguous(memory_format=order)
