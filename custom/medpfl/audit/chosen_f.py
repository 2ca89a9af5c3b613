"""Chosen f: statistics under a pretrained model of the server's choice, asked again and again, give single images.

A site that hands out the mean of a hidden layer over its training data hands out, for weights of the server's choice,
T(q) = mean of max(0, h(x) - q) for any linear function h of what reaches the layer and any threshold q. T is convex and
piecewise linear with a kink at each sample's h. Two thresholds close by give the number of samples above; halving finds
a gap between any two neighbours. With h + epsilon * feature_j in the place of h, and a threshold in the gap below the
m-th sample, the mean changes by epsilon times the sum of feature j over the m highest samples: the difference of two
neighbours' sums is one sample's feature. Own construction; the means are exact, in float64.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from medpfl.audit.probe import Probe
from medpfl.audit.victim import Known, Line, hello
from medpfl.core.parameters import State
from medpfl.core.seeding import generator

_APART = 1e-3
"""Between the two thresholds that give a count, in standard deviations of h."""

_FAR = 8.0
"""Every sample's h lies between -_FAR and _FAR, in standard deviations over the attacker's own images."""

_LIFT = 10.0
"""What is passed through a lower layer is lifted by so much, so that its activation is the identity there."""

_SWING = 6.0
"""No input strays further from its mean than so many standard deviations; a few may."""


@dataclass
class Reader:
    """Reads sums over a site's training samples under weights of the server's choice.

    Attributes:
        line: to the site.
        known: the run.
        probe: the network's lowest fully connected layer; where there is one more below the classifier, this one
            passes inputs on, and the upper one reads.
        samples: number of training samples, as the site says.
        direction: h, over the layer's inputs.
    """

    line: Line
    known: Known
    probe: Probe
    samples: int
    direction: Tensor

    @property
    def reading(self) -> nn.Linear:
        """The layer whose outputs' means the site sends."""
        path = self.probe.layer if len(self.probe.above) == 1 else self.probe.above[-2]
        return self.probe.model.get_submodule(path)

    @property
    def columns_at_once(self) -> int:
        """Inputs that one question can read from."""
        rows, inputs = self.probe.size
        return inputs if len(self.probe.above) == 1 else min(inputs, rows - 1)

    def sums(self, thresholds: Tensor, steps: Tensor, columns: Tensor) -> Tensor | None:
        """Sum over the samples of max(0, h + step * input - threshold), for each row; None if the site refuses.

        Args:
            thresholds: (k,), k at most the rows of :attr:`reading`.
            steps: (k,).
            columns: (k,), which input, in standard deviations from its mean; at most :attr:`columns_at_once` different.
        """
        idle = self.reading.out_features - len(thresholds)
        thresholds = torch.cat([thresholds.float(), torch.full((idle,), 4 * _FAR)])
        steps = torch.cat([steps.float(), torch.zeros(idle)])
        columns = torch.cat([columns, columns.new_full((idle,), int(columns[0]))])
        update = self.line.ask(hello(self.known, self._f(thresholds, steps, columns)))
        found = None if update is None else update.tensors.get(f"{self.known.statistics}/{self.probe.above[-1]}/mean")
        return None if found is None else found[: len(found) - idle].double() * self.samples

    def _f(self, thresholds: Tensor, steps: Tensor, columns: Tensor) -> State:
        state = {name: tensor.clone() for name, tensor in self.probe.model.state_dict().items()}
        for path, module in self.probe.model.named_modules():
            if isinstance(module, nn.PReLU):
                state[f"{path}.weight"] = torch.zeros_like(module.weight)
        mean, deviation = self.probe.scale
        every = torch.arange(len(thresholds))
        layer = self.probe.layer
        if len(self.probe.above) == 1:
            weight = self.direction.repeat(len(thresholds), 1)
            weight[every, columns] += steps / deviation[columns]
            state[f"{layer}.weight"], state[f"{layer}.bias"] = weight, -(thresholds + weight @ mean)
            return state
        chosen = columns.unique()
        passing = torch.zeros(self.probe.size)
        passing[0] = self.direction
        passing[1 + torch.arange(len(chosen)), chosen] = 1 / deviation[chosen]
        state[f"{layer}.weight"], state[f"{layer}.bias"] = passing, _LIFT - passing @ mean
        upper = torch.zeros(self.reading.weight.shape)
        upper[:, 0] = 1.0
        upper[every, 1 + torch.searchsorted(chosen, columns)] = steps
        path = self.probe.above[-2]
        state[f"{path}.weight"], state[f"{path}.bias"] = upper, -(_LIFT + _LIFT * steps + thresholds)
        return state


def why_not(known: Known, probe: Probe | None) -> str | None:
    """Why the attack cannot be tried at this run, in words; None if it can."""
    if not known.config.mixer.under_model:
        return "the method asks for no statistics under an f"
    if not (known.of_classifier and known.statistics):
        return "statistics of batch norm's inputs alone: this audit knows no way from them to single images"
    if probe is None or len(probe.above) > 2:
        return "the network has no fully connected layer to set"
    return None


def chosen_f(line: Line, known: Known, probe: Probe, questions: int, deadline: float) -> Tensor:
    """Pictures (k, C, H, W) from at most so many hellos; k is 0 where the site does not answer.

    Args:
        line: to the site.
        known: the run.
        probe: the network's layer.
        questions: the most hellos.
        deadline: of ``time.process_time()``.
    """
    nothing = torch.zeros(0, *known.shape[-3:])
    greeting = line.ask(hello(known))
    if greeting is None or not (samples := _samples(greeting.metrics)):
        return nothing
    direction = torch.randn(probe.size[1], generator=generator(known.config.seed, "audit", "chosen f"))
    direction = (direction - direction.mean()) / probe.scale[1]
    reader = Reader(line, known, probe, samples, direction / float((probe.own @ direction).std()))
    gaps = find_gaps(reader, questions // 5, deadline)
    inputs = read_inputs(reader, gaps, questions - line.asked, deadline)
    return probe.decode(inputs) if len(inputs) else nothing


def find_gaps(reader: Reader, questions: int, deadline: float) -> dict[int, tuple[float, float]]:
    """Intervals of h without samples, by the number of samples above them."""
    counts = {_FAR: 0, -_FAR: reader.samples}
    for _ in range(questions):
        if time.process_time() > deadline:
            break
        places = sorted(counts)
        pairs = [(a, b) for a, b in pairwise(places) if counts[a] > counts[b] and b - a > 4 * _APART]
        if not pairs:
            break
        # Crowded intervals first, then the wide ones, whose halves widen the gaps at either end.
        pairs.sort(key=lambda p: (counts[p[0]] - counts[p[1]] == 1, p[0] - p[1]))
        pairs = pairs[: reader.reading.out_features // 2]
        each = max(1, reader.reading.out_features // 2 // len(pairs))
        new = torch.tensor([a + (b - a) * k / (each + 1) for a, b in pairs for k in range(1, each + 1)])
        both = torch.stack([new, new + _APART], 1).flatten()
        sums = reader.sums(both, torch.zeros(len(both)), torch.zeros(len(both), dtype=torch.long))
        if sums is None:
            break
        found = (sums[::2] - sums[1::2]) / (both[1::2] - both[::2]).double()
        for place, count in zip(new.tolist(), found.tolist(), strict=True):
            if abs(count - round(count)) < 0.1:  # else a sample lies between the two thresholds
                counts[place] = round(count)
    gaps: dict[int, tuple[float, float]] = {}
    for place, count in counts.items():
        low, high = gaps.get(count, (place, place))
        gaps[count] = min(low, place), max(high, place)
    return {count: (low, high) for count, (low, high) in sorted(gaps.items()) if high > low}


def read_inputs(reader: Reader, gaps: dict[int, tuple[float, float]], questions: int, deadline: float) -> Tensor:
    """The layer's inputs (k, features) of samples with a gap on both sides, as many as the questions suffice for."""
    rows, features = reader.reading.out_features, reader.probe.size[1]
    mean, deviation = reader.probe.scale
    alone = [count for count in gaps if count and count - 1 in gaps]
    # The widest gaps give the cleanest pictures.
    alone.sort(key=lambda c: -min(gaps[k][1] - gaps[k][0] for k in (c, c - 1)))
    edges: list[int] = []
    room = questions * rows // (features + 1)
    for count in alone:
        more = {count, count - 1} - set(edges)
        if len(edges) + len(more) <= room:
            edges += sorted(more)
    if not edges:
        return torch.zeros(0, features)
    middle = torch.tensor([(gaps[e][0] + gaps[e][1]) / 2 for e in edges])
    step = torch.tensor([(gaps[e][1] - gaps[e][0]) / 2 for e in edges]) / _SWING
    totals = torch.full((len(edges), features + 1), torch.nan, dtype=torch.float64)
    # The first column has no step: it is what the others are compared with.
    for block in (torch.zeros(0, dtype=torch.long), *torch.arange(features).split(reader.columns_at_once)):
        asked = [(e, -1) for e in range(len(edges))] if not len(block) else []
        asked += [(e, int(c)) for c in block for e in range(len(edges))]
        for start in range(0, len(asked), rows):
            if time.process_time() > deadline:
                return torch.zeros(0, features)
            some = torch.tensor(asked[start : start + rows])
            edge, column = some[:, 0], some[:, 1]
            sums = reader.sums(middle[edge], torch.where(column < 0, 0.0, step[edge]), column.clamp_min(0))
            if sums is None:
                return torch.zeros(0, features)
            totals[edge, column + 1] = sums
    above = (totals[:, 1:] - totals[:, :1]) / step[:, None].double()
    number = {count: position for position, count in enumerate(edges)}
    single = [above[number[c]] - above[number[c - 1]] for c in alone if c in number and c - 1 in number]
    return torch.stack(single).float() * deviation + mean if single else torch.zeros(0, features)


def _samples(metrics: Mapping[str, Any]) -> int:
    """Number of training samples that a greeting says; 0 where it says none."""
    try:
        return int(metrics["samples"]["train"])
    except (KeyError, TypeError, ValueError):
        return 0
