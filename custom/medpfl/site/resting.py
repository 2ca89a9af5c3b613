"""On how many patients an update rests: measured while it is trained, whatever the network, the weights and the data.

Many a network, and many weights, let nearly all of an update be of few patients: units that are active for one of them,
a derivative that is a million times as large for one. Of what a sample adds to the gradient of a layer's weights the
length is at most that of the gradient at the layer's output times that of its input. Summed by patient over a round it
says how much of the update each one has, and (sum s)^2 / sum s^2 as how many alike (Kish, 1965). In honest training
that is many, and fewer as the loss falls (benchmarks/privacy.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from medpfl.core.parameters import StateError
from medpfl.core.seeding import Order
from medpfl.core.site_data import SiteData, SiteLoaders

logger = logging.getLogger(__name__)

SHARE = 4
"""An update rests on at least one of so many of ``least_patients``."""


class Resting:
    """The watch over one training.

    Args:
        data: what is trained on.
        order: says of which samples the batch is that is trained on.
        epochs: in how many each sample is met.
    """

    def __init__(self, data: SiteData, order: Order, epochs: int):
        self._order = order
        self._epochs = epochs if isinstance(data, SiteLoaders) else 1  # a loader's samples are others in every epoch
        owners = data.owners("train")
        self._owners = None if owners is None else owners.cpu().unique(return_inverse=True)[1]
        self._lengths: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._unknown: set[str] = set()
        self._inputs = self._layers = 0

    @contextmanager
    def watched(self, model: nn.Module, shared: Container[str]) -> Iterator[None]:
        """Inside, passes through the model are looked at, in those layers whose weights are shared, by their names."""
        # Functions of no object, since a copy of the model would copy that too.
        hooks = [
            model.register_forward_pre_hook(lambda _, inputs: self._within(len(inputs[0]))),
            model.register_forward_hook(lambda *_: self._within(0)),
        ]
        layers = list(_layers_of(model, shared))
        wide = [layer for layer in layers if any(p.dim() > 1 for p in layer[2])]
        for name, module, weights in wide or layers:  # scales and shifts tell little, but where nothing else is shared
            hooks.append(module.register_forward_hook(self._hook(name, module, weights), with_kwargs=True))
            self._layers += 1
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def patients(self) -> float:
        """As how many patients alike the least of the layers' gradients rest on; infinite where nothing was met."""
        return min(map(self._alike, self._lengths.values()), default=float("inf")) / self._epochs

    def require_many(self, least: int) -> None:
        """StateError where the update rests on few patients, by a site's least number of them, or nobody can say."""
        if self._unknown - set(self._lengths) or (self._layers and not self._lengths):
            raise StateError("policy: it cannot be told on how many patients this update rests (least_patients)")
        if (patients := self.patients()) < least / SHARE:
            logger.warning("the update rests on as many patients as %.1f alike would", patients)
            raise StateError(
                "policy: few patients have nearly all of this update: it rests on fewer than a quarter of "
                f"{least} alike (least_patients)"
            )

    def _hook(self, name: str, known: nn.Module, weights: Sequence[nn.Parameter]) -> Callable[..., None]:
        def passes(module: nn.Module, inputs: tuple, named: dict, output: object) -> None:
            if module is known and any(p.requires_grad for p in weights):  # and no copy, nor frozen in this pass
                self._passes(name, (inputs, named), output, getattr(module, "batch_first", True))

        return passes

    def _within(self, inputs: int) -> None:
        """A pass of so many through the whole model; 0 where its layers are called one by one."""
        self._inputs = inputs

    def _passes(self, name: str, inputs: object, output: object, batch_first: bool) -> None:
        made = next((t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad), None)
        came = next((t for t in tree_leaves(inputs) if isinstance(t, Tensor)), None)
        whose = self._order.batch
        count = self._inputs or (0 if whose is None else len(whose))
        if whose is None or made is None or len(whose) > count:
            return  # nothing is trained of this pass
        by_sample = partial(_by_sample, count=count, batch_first=batch_first)
        if came is None or by_sample(came) is None or by_sample(made) is None:
            self._unknown.add(name)
            return
        if self._owners is not None:
            whose = self._owners[whose]
        length = by_sample(came)
        made.register_hook(lambda gradient: self._add(name, whose, by_sample(gradient) * length))

    def _add(self, name: str, whose: Tensor, lengths: Tensor) -> None:
        # others' samples may go with the site's own, which are the first
        self._lengths.setdefault(name, []).append((whose, lengths[: len(whose)]))

    @staticmethod
    def _alike(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
        whose = torch.cat([patients for patients, _ in pairs])
        lengths = torch.cat([length for _, length in pairs]).cpu().double().nan_to_num(0.0, 0.0)
        share = torch.zeros(int(whose.max()) + 1, dtype=torch.float64).index_add_(0, whose, lengths)
        total = float(share.sum())
        return total**2 / float(share.square().sum()) if total else float("inf")


def _layers_of(model: nn.Module, shared: Container[str]) -> Iterator[tuple[str, nn.Module, list[nn.Parameter]]]:
    """Modules with shared parameters of their own."""
    for name, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        if weights := [p for key, p in own if f"{name}.{key}".removeprefix(".") in shared]:
            yield name, module, weights


def _by_sample(values: Tensor, count: int, batch_first: bool) -> Tensor | None:
    """Euclidean lengths, (count,), of samples: of the first dimension, where each may have several rows running, or the
    second; None where neither has them.
    """
    values = values.detach().float()
    second = values.dim() > 1 and values.shape[1] == count and (len(values) != count or not batch_first)
    if second:
        values = values.transpose(0, 1)
    elif len(values) % count:
        return None
    by_row = torch.linalg.vector_norm(values, dim=tuple(range(1, values.dim()))) if values.dim() > 1 else values.abs()
    return by_row if len(by_row) == count else by_row.reshape(count, -1).norm(dim=1)
