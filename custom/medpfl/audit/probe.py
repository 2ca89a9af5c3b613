"""A network's fully connected layer that an attacker sets, the layers below it as an encoder, those above as a sum.

Whatever stands below the layer is trained for a thousand steps, on images without data (:mod:`medpfl.audit.prior`), to
bring an image to the layer's inputs in such a way that a linear map brings it back. Only entries that the server sets
are trained. Networks whose first layer it is (``FullyConnectedNet``) need no training: the inputs are the pixels.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.modules.batchnorm import _BatchNorm

from medpfl.audit.prior import prior_images
from medpfl.audit.victim import Known
from medpfl.core.parameters import State
from medpfl.core.seeding import generator

_BATCH = 64
_STEPS = 1000
_RATE = 1e-2


class _Caught(Exception):
    """Ends a forward pass once the layer's input is known."""


@dataclass
class Probe:
    """A fully connected layer at an attacker's service.

    Attributes:
        model: with the encoder's weights below the layer, in the state in which its batch norms were trained.
        layer: path of the layer.
        above: paths of the linear layers above it, from bottom to top; the last one classifies.
        decode: from the layer's inputs (n, features) to images (n, C, H, W), up to brightness and contrast.
        own: the inputs for the attacker's own images, (n, features).
    """

    model: nn.Module
    layer: str
    above: tuple[str, ...]
    decode: Callable[[Tensor], Tensor]
    own: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """Rows of the layer, and inputs."""
        rows, inputs = self.model.get_submodule(self.layer).weight.shape
        return int(rows), int(inputs)

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each input over the attacker's own images, (features,) each."""
        return self.own.mean(0), self.own.std(0).clamp_min(1e-6)


def find_layer(known: Known) -> tuple[str, tuple[str, ...]] | None:
    """The lowest linear layer that has one input vector an image, is the server's as a whole, and is not normalised.

    Returns:
        Its path and those of the linear layers after it; None where the network has no such layer below its last.
    """
    model = known.make_model().eval()
    ran: list[tuple[str, nn.Module, int]] = []
    images = 2 * (known.shape[0] if len(known.shape) == 4 else 1)
    handles = []
    for path, module in model.named_modules():
        if not any(True for _ in module.children()):
            note = partial(lambda path, module, inputs, _: ran.append((path, module, _rows(inputs[0]))), path)
            handles.append(module.register_forward_hook(note))
    with torch.no_grad():
        model(prior_images(2, known.shape, torch.Generator().manual_seed(0)))
    for handle in handles:
        handle.remove()
    linear = [path for path, module, _ in ran if isinstance(module, nn.Linear)]
    for position, (path, module, rows) in enumerate(ran):
        following = ran[position + 1][1] if position + 1 < len(ran) else None
        if isinstance(module, nn.Linear) and rows == images and module.bias is not None and path != linear[-1]:
            whole = {f"{path}.weight", f"{path}.bias"} <= known.whole
            if whole and not isinstance(following, _BatchNorm | nn.LayerNorm):
                return path, tuple(linear[linear.index(path) + 1 :])
    return None


def make_probe(known: Known, seconds: float = 60.0) -> Probe | None:
    """The probe of a run's network; None where it has no layer for it.

    Args:
        known: the run.
        seconds: of the processor; the encoder's training ends there at the latest.
    """
    if (found := find_layer(known)) is None:
        return None
    layer, above = found
    model = known.make_model()
    draw = generator(known.config.seed, "audit", "prior")
    images = prior_images(256, known.shape, draw)
    pixels = images.flatten(0, 1) if images.ndim == 5 else images
    given = layer_input(model.eval(), layer, images)
    if given.shape[1] == pixels[0].numel() and torch.allclose(given, pixels.flatten(1)):

        def decode(features: Tensor) -> Tensor:
            return features.reshape(-1, *pixels.shape[1:])

    else:
        decode = _train_encoder(known, model, layer, seconds, draw)
    model.train()
    with torch.no_grad():
        reached = torch.cat([layer_input(model, layer, part) for part in images.split(_BATCH)])
    return Probe(model, layer, above, decode, reached)


def wire(known: Known, probe: Probe, gains: Tensor) -> State:
    """The shared state with the encoder below the layer, and above it the sum of its rows, times ``gains`` (classes,).

    The layer itself and the bias of the last are the caller's. What stays at the site is as it is there.
    """
    model = copy.deepcopy(probe.model)
    with torch.no_grad():
        for path in probe.above:
            linear = model.get_submodule(path)
            linear.weight.fill_(1 / linear.in_features)
            if linear.bias is not None:
                linear.bias.zero_()
        last = model.get_submodule(probe.above[-1])
        last.weight.copy_(gains[:, None].expand_as(last.weight))
        # A leak below zero would let rows through that are to be silent.
        for module in model.modules():
            if isinstance(module, nn.PReLU):
                module.weight.zero_()
    return known.split.shared_state(model)


def layer_input(model: nn.Module, layer: str, images: Tensor) -> Tensor:
    """The layer's input for images; what is above the layer is not computed."""
    caught: list[Tensor] = []

    def catch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0])
        raise _Caught

    handle = model.get_submodule(layer).register_forward_pre_hook(catch)
    try:
        model(images)
    except _Caught:
        pass
    finally:
        handle.remove()
    return caught[0]


def _train_encoder(
    known: Known, model: nn.Module, layer: str, seconds: float, draw: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """Trains what is below the layer in place, and gives the linear map back to images."""
    shape = known.shape[-3:]
    model.train()
    width = model.get_submodule(layer).in_features
    decoder = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, math.prod(shape)))
    own = [p for name, p in model.named_parameters() if name in known.whole]
    optimizer = torch.optim.Adam([{"params": own, "lr": _RATE}, {"params": decoder.parameters(), "lr": _RATE}])
    begun = time.process_time()
    pool = prior_images(4096 if len(known.shape) == 3 else 512, known.shape, draw)
    for step in range(_STEPS):
        if time.process_time() - begun > seconds:
            break
        x = pool[torch.randint(len(pool), (_BATCH,), generator=draw)]
        aim = _without_brightness(x.flatten(0, 1) if x.ndim == 5 else x).flatten(1)
        loss = mse_loss(decoder(layer_input(model, layer, x)), aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = _RATE * max(0.02, 1 - step / _STEPS)
    decoder.eval()

    def decode(features: Tensor) -> Tensor:
        with torch.no_grad():
            return decoder(features).reshape(-1, *shape)

    return decode


def _without_brightness(images: Tensor) -> Tensor:
    flat = images.flatten(1)
    flat = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True).clamp_min(0.05)
    return flat.reshape(images.shape)


def _rows(tensor: Tensor) -> int:
    return len(tensor) if tensor.ndim == 2 else -1
