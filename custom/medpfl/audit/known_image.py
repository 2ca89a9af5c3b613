"""Known image: whether an image that the attacker holds is in a site's validation data, and with which label.

One model for each class c answers c for the known image and another class d for everything else. Against a model that
always answers d, the accuracy is higher by one sample exactly if the image is there and has label c. Membership
inference by queries of the server's choice; the network compares its features of the image with those of the known one
(sum over rows of |u (x - x*)|), so that no training is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from medpfl.audit.probe import Probe, layer_input, wire
from medpfl.audit.victim import Known, Line, ask_anew, hello
from medpfl.core.messages import Message
from medpfl.core.parameters import State
from medpfl.core.seeding import generator

_SHARP = 1e4
"""Of the logits: what is nearer than the tolerance is class c, all else is class d."""

_TOLERANCE = 0.02
"""Mean distance of a row, in standard deviations, within which an image is the known one."""


@dataclass(frozen=True)
class Said:
    """What the attack says of one image.

    Attributes:
        present: whether it is in the validation part; None where the site's answers do not say.
        label: its class there; None if it is not present.
    """

    present: bool | None
    label: int | None = None


def why_not(known: Known, probe: Probe | None) -> str | None:
    """Why the attack cannot be tried at this run, in words; None if it can."""
    if probe is None:
        return "the network has no fully connected layer to set"
    last = f"{probe.above[-1]}.weight"
    return None if last in known.whole else "the classification layer stays at the site"


def known_image(line: Line, known: Known, probe: Probe, images: Sequence[Tensor]) -> list[Said]:
    """Asks about images (C, H, W), a task of validation for each class and image, in as many runs as it takes."""
    said: list[Said] = []
    base: dict[int, float] = {}
    line.begin()
    if line.ask(hello(known)) is None:
        return [Said(None)] * len(images)
    for image in images:
        found = Said(False)
        for label in range(known.classes):
            other = (label + 1) % known.classes
            if other not in base and (value := _ask(line, known, _always(known, probe, other))) is not None:
                base[other] = value[0]
            value = _ask(line, known, _only_for(known, probe, image, label, other))
            if value is None or other not in base:
                return [*said, *([Said(None)] * (len(images) - len(said)))]
            accuracy, samples = value
            if round((accuracy - base[other]) * samples) >= 1:
                found = Said(True, label)
                break
        said.append(found)
    return said


def _only_for(known: Known, probe: Probe, image: Tensor, label: int, other: int) -> State:
    rows, inputs = probe.size
    half = rows // 2
    draw = generator(known.config.seed, "audit", "known image")
    directions = torch.randn(half, inputs, generator=draw) / probe.scale[1] / inputs**0.5
    shape = image.expand(known.shape[0], *image.shape) if len(known.shape) == 4 else image
    gains = torch.zeros(known.classes)
    gains[label] = -_SHARP
    state = wire(known, probe, gains)
    with torch.no_grad():  # as the site computes it, whose own part is the first one before it has trained
        there = directions @ layer_input(known.model_of(state).eval(), probe.layer, shape[None])[0]
    weight, bias = torch.zeros(rows, inputs), torch.zeros(rows)
    weight[:half], bias[:half] = directions, -there
    weight[half : 2 * half], bias[half : 2 * half] = -directions, there
    state[f"{probe.layer}.weight"], state[f"{probe.layer}.bias"] = weight, bias
    # The mean of the rows is what arrives at the last layer: half of the mean distance.
    state[f"{probe.above[-1]}.bias"] = _biases(known, label, _SHARP * _TOLERANCE / 2, other)
    return state


def _always(known: Known, probe: Probe, label: int) -> State:
    state = wire(known, probe, torch.zeros(known.classes))
    state[f"{probe.above[-1]}.bias"] = _biases(known, label, 1.0, label)
    return state


def _biases(known: Known, label: int, value: float, other: int) -> Tensor:
    biases = torch.full((known.classes,), -_SHARP)
    biases[other] = 0.0
    biases[label] = value
    return biases


def _ask(line: Line, known: Known, state: State) -> tuple[float, int] | None:
    """Accuracy and number of validation samples; None if the site does not say them."""
    round_ = known.config.rounds
    answers = ask_anew(line, known, Message("validate", round_, state, {"best_round": 0}))
    found: Any = answers[0].metrics.get("validation") if answers else None
    if not isinstance(found, Mapping):
        return None
    accuracy, samples = found.get("accuracy"), found.get("n")
    return (float(accuracy), int(samples)) if accuracy is not None and samples else None
