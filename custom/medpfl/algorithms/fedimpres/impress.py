"""The server's extra step: from the sites' mean shared state to the impression that goes to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.synthesis import SynthesisDiverged, synthesise
from medpfl.core.errors import Stopped
from medpfl.core.layers import batch_norm_layers
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.site_data import batch_sizes

BRIGHTEST = 8.0
"""What a pixel of an impression may be at most; of images that it starts from most lie in [-1, 1]."""
_IMAGES = 256
"""Images in a batch of which statistics are taken, at most one more."""


def impression_maker(
    split: ParameterSplit,
    make_model: Callable[[], nn.Module],
    initial_personal: State,
    start: Tensor,
    settings: ImpressionSettings,
    stop: Callable[[], bool] = lambda: False,
) -> Callable[[State], tuple[State, dict[str, Any]]]:
    """A function that makes impressions; it always starts from the same images.

    Where batch norm stays at the sites, the server's model takes its statistics from the start images, with the scale
    and shift of the first model; other personal parts are the first model's.

    An impression that cannot be made, because it diverged or a large set found no space on disk, is no error: there are
    no tensors, and the report says why. One that is made travels as one message, and so is in memory as a whole, in
    float16.

    Args:
        split: what is shared.
        make_model: a fresh model on the server's device.
        initial_personal: the personal part of the first model.
        start: (n, C, H, W) float32 as models take them.
        settings: the method's.
        stop: whether the run is to end; the function then raises :class:`~medpfl.core.errors.Stopped` within the time
            of a step.
    """

    def impress(shared: State) -> tuple[State, dict[str, Any]]:
        started = time.perf_counter()
        model = make_model()
        split.load_shared(model, shared)
        split.load_personal(model, initial_personal)
        layers = batch_norm_layers(model)
        if own := [layer for path, layer in layers.items() if f"{path}.running_mean" in split.personal_names]:
            _take_statistics(model, own, start, stop)
        try:
            made = synthesise(model, start, settings, stop)
        except (SynthesisDiverged, OSError) as error:
            return {}, {"failed": str(error), "seconds": time.perf_counter() - started}
        tensors = {
            "images": made.images.to(torch.float16),
            "labels": made.labels.to(torch.uint8 if int(made.labels.max()) < 256 else torch.int64),
        }
        darkest, brightest = tensors["images"].aminmax()  # which copies nothing; no number where one is none
        if not (darkest >= -BRIGHTEST and brightest <= BRIGHTEST):
            reason = (
                f"pixels of the impression are beyond {BRIGHTEST:g}, which no site takes: lower pixel_lr, or start "
                "from images that are not"
            )
            return {}, {"failed": reason, "seconds": time.perf_counter() - started}
        return tensors, made.report() | {"seconds": time.perf_counter() - started}

    return impress


def _take_statistics(model: nn.Module, layers: Sequence[nn.Module], images: Tensor, stop: Callable[[], bool]) -> None:
    """Replaces running statistics of layers that the federation has none of by those of the images.

    Of many they are the mean over batches of the same size. A single image has none, and the model keeps its own.
    """
    if len(images) == 1:
        return
    device = next(model.parameters()).device
    before = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
    with torch.no_grad():
        for batch in images.split(batch_sizes(len(images), _IMAGES, even=True)):
            if stop():
                raise Stopped
            model(batch.to(device))
    for layer, momentum in zip(layers, before, strict=True):
        layer.momentum = momentum
