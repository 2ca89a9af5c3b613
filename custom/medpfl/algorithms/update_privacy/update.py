"""A site's update between training and sending: difference, clip, noise.

Client-level differential privacy with noise at the site, so that the server need not be trusted (McMahan, Ramage,
Talwar, Zhang: Learning differentially private recurrent language models, ICLR 2018, with the noise at the client). The
difference of the shared state after training to what was received is scaled to an L2 norm of ``update_clip`` = S at
most, over all entries together, and gets Gaussian noise of standard deviation ``update_noise`` * S in each. All of the
site's data replaced by any others move the clipped difference by at most 2 S.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from medpfl.core.noise import NoiseSource, clip_factor, noised, on_grid
from medpfl.core.parameters import State
from medpfl.core.settings import Value


def protected_update(
    received: Mapping[str, Tensor], trained: State, settings: Mapping[str, Value], source: NoiseSource
) -> State:
    """The shared state that leaves, on the CPU.

    Args:
        received: the shared state with which training began.
        trained: the shared state after it; the same names and shapes.
        settings: ``update_clip`` and ``update_noise``; where both are 0 the state leaves as it is.
        source: of the noise.
    """
    trained = {name: tensor.cpu() for name, tensor in trained.items()}
    if not (bound := float(settings.get("update_clip", 0))):
        return trained
    before = {name: received[name].cpu() for name in trained}
    if noise := float(settings["update_noise"]):
        return noised_update(before, trained, bound, noise * bound, source)
    return clip_update(before, trained, bound)


def clip_update(received: Mapping[str, Tensor], trained: State, bound: float) -> State:
    """The trained state, moved towards the received one until their L2 distance is at most the bound.

    A state that is near enough comes back with the same bits.
    """
    difference = _difference(received, trained)
    factor = clip_factor(_norm(difference), bound)
    return trained if factor == 1 else _added(received, {name: d * factor for name, d in difference.items()})


def noised_update(
    received: Mapping[str, Tensor], trained: State, bound: float, deviation: float, source: NoiseSource
) -> State:
    """The received state and the clipped difference with Gaussian noise in every entry.

    Args:
        received: with what training began.
        trained: after it.
        bound: of the difference's L2 norm.
        deviation: the noise's standard deviation.
        source: of the noise.
    """
    difference = _difference(received, trained)
    factor = clip_factor(_norm(difference), bound)
    flat = np.concatenate([d.numpy().ravel() for d in difference.values()]) * factor
    noisy = torch.from_numpy(noised(on_grid(flat, deviation), deviation, source))
    pieces = noisy.split([d.numel() for d in difference.values()])
    return _added(received, {n: p.view_as(d) for (n, d), p in zip(difference.items(), pieces, strict=True)})


def _difference(received: Mapping[str, Tensor], trained: State) -> State:
    return {name: tensor.double() - received[name].double() for name, tensor in trained.items()}


def _norm(difference: State) -> float:
    return sqrt(sum(float(d.square().sum()) for d in difference.values()))


def _added(received: Mapping[str, Tensor], difference: State) -> State:
    return {name: (received[name].double() + d).to(received[name].dtype) for name, d in difference.items()}
