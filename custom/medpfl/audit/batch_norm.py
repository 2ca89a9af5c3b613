"""Personal batch norm: what a batch-norm layer that never leaves the site does, from measures alone.

With the weights below a batch norm at zero, its output is the same for every image: a * b + c, where b is the bias
below it, which the server sets, and a and c are what the site keeps (gamma over the standard deviation, and the rest).
Above it, the model answers class p or class q as that number lies above or below a threshold of the server's choice,
and the accuracy tells which: each task halves the interval. Two values of b give a and c of a channel. Where a run
answers no more, the next task is in a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from medpfl.audit.probe import Probe, layer_input, wire
from medpfl.audit.victim import Known, Line, honest_rounds
from medpfl.core.layers import batch_norm_layers
from medpfl.core.messages import Message
from medpfl.core.parameters import State

_AT = (4.0, 8.0)
"""The two values of the bias below."""

_RANGE = 64.0
_BITS = 16
TASKS = _BITS + 1
"""For one output of the batch norm: halvings of its range, and the accuracy on one side of it."""


@dataclass(frozen=True)
class Probed:
    """What came out for one channel.

    Attributes:
        layer: path of the batch norm.
        channel: its number.
        slope: gamma / sqrt(variance + eps), as probed.
        offset: beta - slope * mean, as probed.
        in_all: numbers of this kind that the site keeps.
    """

    layer: str
    channel: int
    slope: float
    offset: float
    in_all: int


def why_not(known: Known, probe: Probe | None) -> str | None:
    """Why the attack cannot be tried at this run, in words; None if it can."""
    if not set(_names(known)) <= set(known.split.personal_names) or not _names(known):
        return "no batch norm stays at the site"
    if probe is None or _below(known, probe) is None:
        return "the network has no fully connected layer to set above a batch norm"
    return None


def batch_norm(line: Line, known: Known, probe: Probe, channels: int) -> list[Probed]:
    """Probes channels of the highest batch norm below the layer, after an honest round.

    Two numbers a channel, of :data:`TASKS` tasks each, and a task for every class before.
    """
    if not honest_rounds(line, known, 1):
        return []
    norm, below = _below(known, probe)
    classes = _two_classes(line, known, probe)
    if classes is None:
        return []
    in_all = 2 * sum(layer.num_features for layer in batch_norm_layers(known.make_model()).values())
    found = []
    for channel in range(channels):
        outputs = []
        for bias in _AT:
            value = _bisect(line, known, probe, below, channel, bias, classes)
            if value is None:
                return found
            outputs.append(value)
        slope = (outputs[1] - outputs[0]) / (_AT[1] - _AT[0])
        found.append(Probed(norm, channel, slope, outputs[0] - slope * _AT[0], in_all))
    return found


def true_channel(model: nn.Module, probed: Probed) -> tuple[float, float]:
    """Slope and offset of the channel as the site has them."""
    layer, c = model.get_submodule(probed.layer), probed.channel
    with torch.no_grad():
        slope = float(layer.weight[c] / (layer.running_var[c] + layer.eps).sqrt())
        return slope, float(layer.bias[c] - slope * layer.running_mean[c])


def _names(known: Known) -> list[str]:
    layers = batch_norm_layers(known.make_model())
    return [f"{path}.{name}" for path in layers for name in ("weight", "bias", "running_mean", "running_var")]


def _below(known: Known, probe: Probe) -> tuple[str, str] | None:
    """The last batch norm that runs before the layer, and the layer of weights right before it."""
    ran: list[tuple[str, nn.Module]] = []
    handles = [
        module.register_forward_hook(lambda m, _, __, path=path: ran.append((path, m)))
        for path, module in probe.model.named_modules()
        if not any(True for _ in module.children())
    ]
    probe.model.eval()
    with torch.no_grad():
        layer_input(probe.model, probe.layer, torch.zeros(2, *known.shape))
    for handle in handles:
        handle.remove()
    pairs = [(b, a) for a, b in pairwise(ran) if b[0] in batch_norm_layers(probe.model)]
    if not pairs:
        return None
    (norm, _), (below, weights) = pairs[-1]
    ours = getattr(weights, "bias", None) is not None and {f"{below}.weight", f"{below}.bias"} <= known.whole
    return (norm, below) if ours else None


def _state(
    known: Known, probe: Probe, below: str, channel: int, bias: float, threshold: float, classes: tuple[int, int]
) -> State:
    state = wire(known, probe, torch.zeros(known.classes))
    state[f"{below}.weight"] = torch.zeros_like(state[f"{below}.weight"])
    state[f"{below}.bias"] = torch.zeros_like(state[f"{below}.bias"])
    state[f"{below}.bias"][channel] = bias
    rows, inputs = probe.size
    block = inputs // len(state[f"{below}.bias"])
    weight, offset = torch.zeros(rows, inputs), torch.zeros(rows)
    weight[0, channel * block] = 1.0
    offset[0] = -threshold
    state[f"{probe.layer}.weight"], state[f"{probe.layer}.bias"] = weight, offset
    high, low = classes
    state[f"{probe.above[-1]}.weight"][high] = 1e6
    biases = torch.full((known.classes,), -1e9)
    biases[high], biases[low] = 0.0, 1e-3
    state[f"{probe.above[-1]}.bias"] = biases
    return state


def _bisect(
    line: Line, known: Known, probe: Probe, below: str, channel: int, bias: float, classes: tuple[int, int]
) -> float | None:
    """The batch norm's output for that bias below it."""
    low, high = 0.0, _RANGE
    above = _accuracy(line, known, _state(known, probe, below, channel, bias, -1.0, classes))
    for _ in range(_BITS):
        middle = (low + high) / 2
        value = _accuracy(line, known, _state(known, probe, below, channel, bias, middle, classes))
        if value is None or above is None:
            return None
        low, high = (middle, high) if value == above else (low, middle)
    return (low + high) / 2


def _two_classes(line: Line, known: Known, probe: Probe) -> tuple[int, int] | None:
    """Two classes of different shares in the validation part: a constant answer of one scores unlike the other."""
    shares: dict[int, float] = {}
    for label in range(known.classes):
        state = wire(known, probe, torch.zeros(known.classes))
        state[f"{probe.above[-1]}.bias"][label] = 1.0
        if (value := _accuracy(line, known, state)) is None:
            return None
        shares[label] = value
    high, low = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    return (high, low) if shares[high] > shares[low] else None


def _accuracy(line: Line, known: Known, state: State) -> float | None:
    question = Message("validate", known.config.rounds, state, {"best_round": 0})
    update = line.ask(question)
    if update is None and honest_rounds(line, known, 1):  # a new run of the same job, in which the site trains the same
        update = line.ask(question)
    found: Any = update.metrics.get("validation") if update else None
    return found.get("accuracy") if isinstance(found, Mapping) else None
