"""On how many patients an update rests: measured while it is trained, whatever the network, the weights and the data.

Many a network, and many weights, let nearly all of an update be of few patients: units that are active for one of them,
a derivative that is a million times as large for one. What a sample adds to the gradient of a layer's weights is, in
the sum of its entries' sizes, at most that of the gradient at the layer's output times that of its input; to that of
its bias the former alone, also where the input is 0. Summed by patient over a round it says how much of the update each
one has, and :func:`as_alike` as how many. In honest training that is many, and fewer as the loss falls
(benchmarks/privacy.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from medpfl.core.parameters import StateError
from medpfl.core.seeding import Order
from medpfl.core.site_data import SiteData, SiteLoaders
from medpfl.models.lora import LoRALinear
from medpfl.site import words
from medpfl.site.unlike_training import PIXELS

logger = logging.getLogger(__name__)

SHARE = 4
"""An update rests on at least one of so many of ``least_patients``."""


class Resting:
    """The watch over one training.

    Args:
        data: what is trained on.
        order: says of which samples the batch is that is trained on.
        epochs: in how many each sample is met.
        beside: how many samples that are made of it go with each, in the order of the batch and right behind it.
    """

    def __init__(self, data: SiteData, order: Order, epochs: int, beside: int = 0):
        self._order, self._each = order, 1 + beside
        self._epochs = epochs if isinstance(data, SiteLoaders) else 1  # a loader's samples are others in every epoch
        owners = data.owners("train")
        self._owners = None if owners is None else owners.cpu().unique(return_inverse=True)[1]
        self._sizes: dict[tuple[str, str], list[tuple[Tensor, Tensor, Tensor]]] = {}
        self._waiting: list[tuple[tuple[str, str], Tensor, Tensor, Tensor]] = []  # for their step
        self._unknown: set[str] = set()
        self._handed: Tensor | None = None
        self._inputs = self._layers = 0

    @contextmanager
    def watched(self, model: nn.Module, shared: Container[str]) -> Iterator[None]:
        """Inside, passes through the model are looked at, in those layers whose weights are shared, by their names."""
        # Functions of no object, since a copy of the model would copy that too.
        hooks = [
            model.register_forward_pre_hook(lambda _, *given: self._within(given), with_kwargs=True),
            model.register_forward_hook(lambda *_: self._within(None)),
        ]
        layers = list(_layers_of(model, shared))
        # Few scales and shifts tell little; where nothing else is shared they are looked at too.
        large = [layer for layer in layers if any(p.dim() > 1 or p.numel() >= PIXELS for p in layer[2])]
        time_first = any(getattr(module, "batch_first", True) is False for module in model.modules())
        for name, module, weights in large or layers:
            hook = self._hook(name, module, weights, time_first)
            hooks.append(module.register_forward_hook(hook, with_kwargs=True))
            if isinstance(module, LoRALinear):
                hooks.append(module.between.register_forward_hook(self._hands_on))
            self._layers += 1
        self._order.taken = self._taken
        before = {name: tensor.clone() for name, tensor in _moved_by_nothing(model, shared).items()}
        try:
            yield
            now = _moved_by_nothing(model, shared)
            self._unknown |= {name for name, tensor in before.items() if not torch.equal(tensor, now[name])}
        finally:
            self._order.taken = None
            for hook in hooks:
                hook.remove()

    def patients(self) -> float:
        """As how many patients alike the least of the layers' gradients rest on; infinite where nothing was met.

        A method's further steps count by themselves: it may scale them up to the size of all the others.
        """
        self._taken(1.0)  # of whom nobody says that steps are taken
        found = (self._alike(met) / (1 if step else self._epochs) for (_, step), met in self._sizes.items())
        return min(found, default=float("inf"))

    def require_many(self, least: int) -> None:
        """StateError where the update rests on few patients, by a site's least number of them, or nobody can say."""
        patients = self.patients()
        if self._unknown or (self._layers and not self._sizes):
            raise StateError(words.UPDATE_OF_UNKNOWN())
        if patients < least / SHARE:
            logger.warning("the update rests on as many patients as %.1f alike would", patients)
            raise StateError(words.UPDATE_OF_FEW(least))

    def _hook(
        self, name: str, known: nn.Module, weights: Sequence[nn.Parameter], time_first: bool
    ) -> Callable[..., None]:
        def passes(module: nn.Module, inputs: tuple, named: dict, output: object) -> None:
            if module is not known or not any(p.requires_grad for p in weights):
                return  # a copy, or frozen in this pass
            if isinstance(module, LoRALinear):  # B may meet few of those whom A meets
                self._passes(f"{name}, A", (inputs, named), self._handed, time_first)
                self._passes(f"{name}, B", self._handed, output, time_first)
                self._handed = None
            else:
                shifts = any(p is getattr(module, "bias", None) and p.requires_grad for p in weights)
                self._passes(name, (inputs, named), output, time_first, shifts=shifts)

        return passes

    def _hands_on(self, _: nn.Module, __: tuple, output: Tensor) -> None:
        """Within an adapter, of two matrices, the first to the second."""
        self._handed = output

    def _within(self, given: object) -> None:
        """A pass through the whole model; None after it, as where its layers are called one by one."""
        first = next((t for t in tree_leaves(given) if isinstance(t, Tensor)), None)
        self._inputs = 0 if first is None else len(first)

    def _passes(self, name: str, inputs: object, output: object, time_first: bool, *, shifts: bool = False) -> None:
        made = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        came = next((t for t in tree_leaves(inputs) if isinstance(t, Tensor)), None)
        whose = self._order.batch
        count = self._inputs or (0 if whose is None else len(whose))
        if whose is None or not made or len(whose) > count or (came is not None and not came.is_floating_point()):
            return  # nothing is trained of this pass, or it is a table's, of places
        placed = partial(_by_sample, count=count, time_first=time_first)
        if came is None or placed(came) is None or any(placed(one) is None for one in made):
            self._unknown.add(name)
            return
        size, of = _sizes(placed(came)), whose if self._owners is None else self._owners[whose]
        step = self._order.step

        def add(gradient: Tensor) -> None:
            of_output = _sizes(placed(gradient))
            self._add((name, step), of, of_output, size, gradient.dtype)
            if shifts:  # where the input is 0 the bias rests on it all the same
                self._add((f"{name}, bias", step), of, of_output, torch.ones_like(size), gradient.dtype)

        for one in made:
            one.register_hook(add)

    def _add(self, where: tuple[str, str], whose: Tensor, gradient: Tensor, came: Tensor, dtype: torch.dtype) -> None:
        if dtype is torch.float16:  # of a step that overflows nothing is taken
            gradient = torch.where(gradient.isfinite().all(), gradient, torch.zeros_like(gradient))
        # Others' samples may go with the site's own, which are the first.
        whose = whose.repeat(self._each)[: len(gradient)]
        self._waiting.append((where, whose, gradient[: len(whose)], came[: len(whose)]))

    def _taken(self, share: Tensor | float) -> None:
        """A step of the round's own was taken by so much of its gradients.

        Clipping may leave next to nothing of them where another layer's are large, a loss that overflows nothing.
        """
        for where, whose, gradient, came in self._waiting:
            if not where[1]:
                gradient = gradient * share if isinstance(share, Tensor) or share else torch.zeros_like(gradient)
            self._sizes.setdefault(where, []).append((whose, gradient, came))
        self._waiting.clear()

    @staticmethod
    def _alike(met: Sequence[tuple[Tensor, Tensor, Tensor]]) -> float:
        whose = torch.cat([patients for patients, _, _ in met])
        gradient, came = (torch.cat([each[k] for each in met]).cpu().double() for k in (1, 2))
        sizes = gradient * came
        if not bool(sizes.isfinite().all()):
            return 0.0
        return as_alike(torch.zeros(int(whose.max()) + 1, dtype=torch.float64).index_add_(0, whose, sizes))


def as_alike(shares: Tensor) -> float:
    """As how many alike parts of a whole count, (n,) float64: (sum s)^2 / sum s^2 (Kish, 1965); infinite of nothing."""
    total = float(shares.sum())
    return 1 / float((shares / total).square().sum()) if total else float("inf")


def _layers_of(model: nn.Module, shared: Container[str]) -> Iterator[tuple[str, nn.Module, list[nn.Parameter]]]:
    """Modules with shared parameters of their own."""
    for name, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        if weights := [p for key, p in own if f"{name}.{key}".removeprefix(".") in shared]:
            yield name, module, weights


def _moved_by_nothing(model: nn.Module, shared: Container[str]) -> dict[str, Tensor]:
    """Shared entries that neither a gradient nor batch norm changes: what else does may be of one batch, or one image.

    MONAI's VQVAE has such: sums of the features that it met.
    """
    known = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _NormBase):
            known |= {f"{path}.{name}".removeprefix(".") for name, _ in module.named_buffers()}
    return {name: t.detach() for name, t in model.state_dict().items() if name in shared and name not in known}


def _by_sample(values: Tensor, count: int, time_first: bool) -> Tensor | None:
    """With samples as the first dimension, (count, ...): they are that, several rows running each, or the second.

    None where neither has them.
    """
    second = values.dim() > 1 and values.shape[1] % count == 0
    if second and (len(values) % count or (time_first and values.dim() == 3 and values.shape[1] == count)):
        values = values.transpose(0, 1)
    elif len(values) % count:
        return None
    return values.reshape(count, -1)


def _sizes(values: Tensor) -> Tensor:
    """Sums of absolute values, (count,)."""
    return torch.linalg.vector_norm(values.detach().float(), 1, dim=1)
