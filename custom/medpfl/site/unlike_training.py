"""Settings and networks by which an update would rest on few samples, however many are trained on.

Each rule is against an attack that was carried out (docs/privacy.md), and takes what people train with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from medpfl.core.reasons import Reason

DECAY = 0.01
"""What a step may take off the weights, or of what former steps made, as a share: an update rests on a hundred."""
MOMENTUM = 0.99
"""Of steps and mean gradients, at most: near 1 or above it the first batches outweigh all others."""
RATES = {"sgd": 1.0, "adam": 0.1, "adamw": 0.1, "rmsprop": 0.1, "adagrad": 0.1}
"""Optimizers whose steps weigh samples much alike, and their highest rates: beyond, the first step may be all."""
SQUARES = 0.9
"""Decay of mean squared gradients, at least, where it is said."""
DROPOUT = 0.5
"""Of a network's units, at most; and of samples of which some layer drops all units: others have no gradient."""
STATISTICS = 0.1
"""Momentum of batch norm's running statistics, at most: at 1 they are the last batch's."""
PIXELS = 64
"""Inputs from which on a first layer that connects all takes an image, or a window of time, as a whole."""

LARGE_DECAY = Reason(
    "lr times weight_decay and mu is {number} at most here: updates would be of the last steps alone (least_patients)"
)
LARGE_MOMENTUM = Reason(
    "momentum and beta1 are {number} at most here: updates would be of the first steps alone (least_patients)"
)
OTHER_OPTIMIZER = Reason(
    f"optimizer is one of {', '.join(RATES)} here: of others' steps a single one may be the update (least_patients)"
)
LARGE_RATE = Reason(
    "lr is {number} at most here, of this optimizer: beyond, the first step may leave nothing to others "
    "(least_patients)"
)
OTHER_DECAY = Reason(
    "mu goes with optimizer=sgd here, and weight_decay with sgd and adamw: others' steps may take off what earlier "
    "ones made (least_patients)"
)
SMALL_SQUARES = Reason(
    "beta2 and square_decay are {number} at least here: a single step may be the update (least_patients)"
)
BEGINS_CONNECTED = Reason(
    "the network begins with a fully connected layer, whose gradient shows single images: take one that begins with "
    "convolutions (least_patients)"
)
LARGE_DROPOUT = Reason("dropout is {number} at most here: an update would be of few (least_patients)")
OTHER_STATISTICS = Reason(
    "batch norm's momentum is 0 to {number} here: its statistics would be of one batch (least_patients)"
)
NARROW_LAYERS = Reason("narrow layers drop all units of most samples: an update would be of the rest (least_patients)")

_DROPPED = ("dropout", "drop_prob", "drop_connect_rate")
"""What layers call it that drop without a layer of their own: torch's attention, MONAI's paths and EfficientNet."""


def unlike_training(settings: Mapping[str, Any]) -> str:
    """Why by these settings an update would rest on few steps, in words; empty if not."""
    return next((words for wrong, words in _rules(settings) if wrong), "")


def _rules(settings: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    def value(name: str, default: float = 0.0) -> float:
        return settings.get(name, default)

    optimizer = settings.get("optimizer", "sgd")
    most = RATES.get(optimizer, 0.0)
    # An adaptive step divides what it takes off by the gradient, which may be as small as a network makes it.
    taken_off = value("mu") + (value("weight_decay") if optimizer != "adamw" else 0.0)
    yield value("lr") * (value("weight_decay") + value("mu")) > 1.1 * DECAY, LARGE_DECAY(DECAY)
    yield max(value("momentum"), value("beta1")) > MOMENTUM, LARGE_MOMENTUM(MOMENTUM)
    yield not most, OTHER_OPTIMIZER()
    yield value("lr") > most, LARGE_RATE(most)
    yield optimizer != "sgd" and taken_off > 0, OTHER_DECAY()
    yield value("beta2", 1) < SQUARES or 0 < value("square_decay") < SQUARES, SMALL_SQUARES(SQUARES)


def unusual(model: nn.Module) -> str:
    """Why a network lets an update rest on few samples, by nearly all of them dropped or forgotten; empty if not."""
    first = next((m for m in model.modules() if getattr(getattr(m, "weight", None), "ndim", 0) > 1), None)
    if isinstance(first, nn.Linear) and first.in_features >= PIXELS:
        return BEGINS_CONNECTED()
    units, reached = 0, 1.0
    for layer in model.modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            units = layer.weight.shape[1 if getattr(layer, "transposed", False) else 0]
        dropped = [layer.p] if isinstance(layer, _DropoutNd) else [getattr(layer, name, 0) for name in _DROPPED]
        if any(type(share) in (float, int) and share > DROPOUT for share in dropped):
            return LARGE_DROPOUT(DROPOUT)
        if isinstance(layer, _DropoutNd) and units:
            reached *= 1 - layer.p**units
        if isinstance(layer, _NormBase) and not 0 <= (layer.momentum or 0) <= STATISTICS:
            return OTHER_STATISTICS(STATISTICS)
    if reached < 1 - DROPOUT:
        return NARROW_LAYERS()
    return ""
