"""Imprint: weights under which one update holds single training images.

Fowl, Geiping, Czaja, Goldblum, Goldstein: Robbing the Fed. ICLR 2022. Boenisch et al.: When the curious abandon
honesty. EuroS&P 2023.

All rows of a fully connected layer take the same linear function h of their inputs, with biases at rising thresholds,
and everything above adds them up. Row r is active for the samples with h above its threshold, each with the same
factor for every row; so the difference of the gradients of two neighbouring rows is that of the samples between two
thresholds, and divided by the same difference of the biases it is, for a single sample, the layer's input.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import t
from torch import Tensor

from medpfl.audit.probe import Probe, wire
from medpfl.audit.victim import Exchange, Foothold, Known, Line
from medpfl.core.parameters import State
from medpfl.core.seeding import generator

_STEEPNESS = 1e-1
"""Of the rows, against inputs of standard deviation 1."""

_NOISE = 0.75
"""Of rows that must not copy each other: two of them have a cosine of 0.64."""

_GAIN = 3e-2
"""Of the sum above them: so small that training hardly moves the thresholds, and above what float32 resolves."""


def imprint(line: Line, known: Known, probe: Probe, updates: int) -> tuple[list[Tensor], str]:
    """Pictures from each update, and how the weights came to the site.

    Args:
        line: to the site.
        known: the run.
        probe: the network's layer.
        updates: how many updates are asked for. Every second one has the function h of the one before, with thresholds
            where that one found samples.
    """
    made, way = _imprinted(line, known, probe, updates, noise=0.0)
    # A site that refuses rows which copy each other may take rows that do so less.
    if not made and any("copy each other" in words for words in line.refusals):
        line.begin()
        made, blurred = _imprinted(line, known, probe, updates, noise=_NOISE)
        way = f"{blurred}, its rows blurred" if made else way
    return made, way


def _imprinted(line: Line, known: Known, probe: Probe, updates: int, noise: float) -> tuple[list[Tensor], str]:
    foothold, found = Foothold(line, known), []
    direction, thresholds = None, None
    for number in range(updates):
        if thresholds is None:
            direction = _direction(probe, generator(known.config.seed, "audit", "imprint", str(number)))
            thresholds, wide = _wide(probe.size[0]), True
        exchange = foothold.train_from(imprint_state(known, probe, direction, thresholds, noise))
        if exchange is None:
            break
        found.append(probe.decode(inputs_of(exchange, probe)))
        thresholds, wide = (_crowded(thresholds, exchange, probe), False) if wide else (None, True)
    return found, foothold.way


def imprint_state(known: Known, probe: Probe, direction: Tensor, thresholds: Tensor, noise: float) -> State:
    """The shared state that makes the layer sort samples into bins of ``direction``'s product with its inputs.

    With ``noise`` each row strays from the direction by so many times its length, at random.
    """
    state = wire(known, probe, _GAIN * torch.linspace(-1, 1, known.classes))
    rows = direction.expand(len(thresholds), -1).clone()
    if noise:
        strays = torch.randn(rows.shape, generator=generator(known.config.seed, "audit", "imprint", "noise"))
        rows += noise * direction.norm() * strays / strays.norm(dim=1, keepdim=True)
    state[f"{probe.layer}.weight"] = _STEEPNESS * rows
    state[f"{probe.layer}.bias"] = -_STEEPNESS * (thresholds + direction @ probe.scale[0])
    return state


def inputs_of(exchange: Exchange, probe: Probe) -> Tensor:
    """The layer's inputs by bin, where a bin is not empty: (k, features)."""
    weight, bias = (exchange.change[f"{probe.layer}.{which}"].double() for which in ("weight", "bias"))
    weight = torch.cat([weight[:-1] - weight[1:], weight[-1:]])
    bias = torch.cat([bias[:-1] - bias[1:], bias[-1:]])
    # What float32 leaves of equal biases is noise.
    used = bias.abs() > 1e-5 * bias.abs().max()
    return (weight[used] / bias[used, None]).float()


def _direction(probe: Probe, draw: torch.Generator) -> Tensor:
    """A random function with standard deviation 1 over the attacker's own images."""
    direction = torch.randn(probe.size[1], generator=draw)
    direction -= direction.mean()  # so that brightness, which a stranger to the data cannot know, counts little
    direction /= probe.scale[1]
    return direction / float((probe.own @ direction).std())


def _wide(rows: int) -> Tensor:
    """Quantiles of Student's t with 5 degrees of freedom: real images stray further than the attacker's own."""
    return torch.tensor(t(5).ppf((torch.arange(rows).double() + 0.5).numpy() / rows)).float()


def _crowded(thresholds: Tensor, exchange: Exchange, probe: Probe) -> Tensor:
    """Thresholds where the last update says that samples are: images of one kind lie close together."""
    weight = exchange.change[f"{probe.layer}.weight"].double()
    mass = (weight[:-1] - weight[1:]).norm(dim=1)
    mass = mass.where(mass > 1e-3 * mass.max(), 0.0) ** 0.5 + 1e-12
    reached = torch.cat([torch.zeros(1, dtype=torch.float64), mass.cumsum(0)]) / mass.sum()
    wanted = (np.arange(len(thresholds)) + 0.5) / len(thresholds)
    return torch.tensor(np.interp(wanted, reached.numpy(), thresholds.double().numpy())).float()
