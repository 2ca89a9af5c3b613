"""Imprint: weights under which one update holds single training images.

Fowl, Geiping, Czaja, Goldblum, Goldstein: Robbing the Fed. ICLR 2022. Boenisch et al.: When the curious abandon
honesty. EuroS&P 2023.

All rows of a fully connected layer take the same linear function h of their inputs, with biases at rising thresholds,
and everything above adds them up. Row r is active for the samples with h above its threshold, each with the same
factor for every row; so the difference of the gradients of two neighbouring rows is that of the samples between two
thresholds, and divided by the same difference of the biases it is, for a single sample, the layer's input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from medpfl.audit.probe import Probe, wire
from medpfl.audit.victim import Exchange, Foothold, Known, Line
from medpfl.parameters import State
from medpfl.seeding import generator

_STEEPNESS = 1e-1
"""Of the rows, against inputs of standard deviation 1."""

_GAIN = 3e-2
"""Of the sum above them: so small that training hardly moves the thresholds, and above what float32 resolves."""


def imprint(line: Line, known: Known, probe: Probe, updates: int) -> tuple[list[Tensor], str]:
    """Pictures from each update, and how the weights came to the site.

    Args:
        line: to the site.
        known: the run.
        probe: the network's layer.
        updates: how many updates are asked for, each with a function h of its own.
    """
    foothold, found = Foothold(line, known), []
    for number in range(updates):
        draw = generator(known.config.seed, "audit", "imprint", str(number))
        exchange = foothold.train_from(imprint_state(known, probe, draw))
        if exchange is None:
            break
        found.append(probe.decode(inputs_of(exchange, probe)))
    return found, foothold.way


def imprint_state(known: Known, probe: Probe, draw: torch.Generator) -> State:
    """The shared state that makes the layer sort samples into bins."""
    rows, inputs = probe.size
    mean, deviation = probe.scale
    direction = torch.randn(inputs, generator=draw)
    direction -= direction.mean()  # so that brightness, which a stranger to the data cannot know, does not count
    direction /= deviation
    direction /= _spread(probe, direction)
    thresholds = _thresholds(rows)
    gains = torch.linspace(-1, 1, known.classes)
    state = wire(known, probe, _GAIN * gains)
    state[f"{probe.layer}.weight"] = (_STEEPNESS * direction).expand(rows, -1).clone()
    state[f"{probe.layer}.bias"] = -_STEEPNESS * (thresholds + direction @ mean)
    return state


def inputs_of(exchange: Exchange, probe: Probe) -> Tensor:
    """The layer's inputs by bin, where a bin is not empty: (k, features)."""
    weight, bias = (exchange.change[f"{probe.layer}.{which}"].double() for which in ("weight", "bias"))
    weight = torch.cat([weight[:-1] - weight[1:], weight[-1:]])
    bias = torch.cat([bias[:-1] - bias[1:], bias[-1:]])
    # What float32 leaves of equal biases is noise.
    used = bias.abs() > 1e-5 * bias.abs().max()
    return (weight[used] / bias[used, None]).float()


def _thresholds(rows: int) -> Tensor:
    """Quantiles of Student's t with 5 degrees of freedom: real images stray further than the attacker's own."""
    from scipy.stats import t

    return torch.tensor(t(5).ppf((torch.arange(rows).double() + 0.5).numpy() / rows)).float()


def _spread(probe: Probe, direction: Tensor) -> float:
    """Standard deviation of the function over the attacker's own images."""
    return float((probe.own @ direction).std())
