"""FedImpres' federated impression: images that tell sites what the server's model knows.

Federated Impression for Learning with Distributed Heterogeneous Data (2024), eqs. 2 to 4. The model is frozen, in eval
mode. Pixels are moved by SGD so that the model is sure of its own pseudo-labels, under the constraint that the gradient
of the loss with respect to the classifier's weight nearly vanishes, which is kept by ADMM:

    L = CE(f(x), y) + (rho / 2) |M|^2 + <dual, M>,   M = (softmax f(x) - onehot y)^T F(x) / B + gamma W

with F the classifier's input and W its weight; after the inner steps of an iteration, dual <- dual + rho M over the
whole set. No site's data or class counts are used: labels are the model's own predictions of the start images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.core import scratch
from medpfl.core.errors import Stopped
from medpfl.core.layers import classification_layer, evaluating
from medpfl.models import logits

_TOGETHER = 16
"""Batches that are computed at once. They do not see each other, so this changes no result, only the speed."""
_MOMENTUM = 0.9
"""Of the steps on the pixels, afresh in each outer iteration."""
_LOOKED_AT = 16
"""Images of a set that are compared or checked at once."""


class SynthesisDiverged(RuntimeError):
    """The images or their loss left the finite numbers; the round goes on without an impression."""


@dataclass(frozen=True)
class Impression:
    """Synthetic images and what their making did.

    Attributes:
        images: (n, C, H, W) of the model's type, as it takes them; a large set lies in a file
            (:func:`medpfl.core.scratch.allocate`).
        labels: (n,) int64, the model's predictions of the start images.
        losses: mean cross-entropy of the set before, and after each outer iteration.
        constraint: |M| (Frobenius) of the set, likewise.
        dual: norm of the dual variable after each outer iteration.
        moved: root mean square distance of a pixel from the start, over the set.
    """

    images: Tensor
    labels: Tensor
    losses: list[float] = field(default_factory=list)
    constraint: list[float] = field(default_factory=list)
    dual: list[float] = field(default_factory=list)
    moved: float = 0.0

    def report(self) -> dict[str, Any]:
        """What results.json says of it."""
        counts = torch.bincount(self.labels).tolist()
        return {
            "images": len(self.labels),
            "labels": {str(c): n for c, n in enumerate(counts) if n},
            "loss": self.losses,
            "constraint": self.constraint,
            "dual": self.dual,
            "moved": self.moved,
        }


def synthesise(
    model: nn.Module,
    start: Tensor,
    how: ImpressionSettings,
    stop: Callable[[], bool] = lambda: False,
) -> Impression:
    """Makes an impression of a model.

    Deterministic. Images are worked on in chunks, and only a chunk is on the model's device at a time. The set that is
    worked on need not fit into memory (:func:`medpfl.core.scratch.allocate`).

    Args:
        model: whose last linear layer on the way of the images classifies; left as it is.
        start: (n, C, H, W), n > 0, as the model takes them; not changed.
        how: the settings.
        stop: asked before each step, and before each chunk that is only looked at.

    Raises:
        SynthesisDiverged: an image or the loss is no longer finite.
        Stopped: ``stop`` said so.
        OSError: no space for the file that a large set needs.
    """
    device = next(model.parameters()).device
    _, layer = classification_layer(model, start[:1].to(device))
    chunks = list(range(0, len(start), how.synthesis_batch * _TOGETHER))
    images = scratch.allocate(start.shape, layer.weight.dtype).copy_(start)

    def chunk_of(tensor: Tensor, first: int) -> Tensor:
        if stop():
            raise Stopped
        return tensor[first : first + how.synthesis_batch * _TOGETHER].to(device)

    with _frozen(model), _captured(layer) as captured:
        with torch.no_grad():
            labels = torch.cat([logits(model(chunk_of(images, first))).argmax(1).cpu() for first in chunks])

        def over_the_set() -> tuple[float, Tensor]:
            """Mean cross-entropy, and M, of all images."""
            loss, gradient = 0.0, torch.zeros_like(layer.weight)
            with torch.no_grad():
                for first in chunks:
                    y = chunk_of(labels, first)
                    scores = logits(model(chunk_of(images, first)))
                    loss += float(cross_entropy(scores, y, reduction="sum"))
                    gradient += (scores.softmax(1) - one_hot(y, scores.shape[1])).T @ captured[0]
            return loss / len(images), gradient / len(images) + how.gamma * layer.weight

        dual = torch.zeros_like(layer.weight)
        loss, constraint = over_the_set()
        losses, norms, duals = [loss], [float(constraint.norm())], []
        for _ in range(how.admm_iterations):
            for first in chunks:
                x = chunk_of(images, first).requires_grad_(True)
                y = chunk_of(labels, first)
                optimizer = torch.optim.SGD([x], lr=how.pixel_lr, momentum=_MOMENTUM)
                for _ in range(how.inner_steps):
                    if stop():
                        raise Stopped
                    x.grad = None
                    scores = logits(model(x))
                    _objective(scores, y, captured[0], layer.weight, dual, how).backward()
                    optimizer.step()
                images[first : first + len(x)] = x.detach().cpu()
            loss, constraint = over_the_set()
            if how.constraint:
                dual += how.rho * constraint
            losses.append(loss)
            norms.append(float(constraint.norm()))
            duals.append(float(dual.norm()))
            if not (math.isfinite(loss) and math.isfinite(norms[-1]) and all_finite(images)):
                raise SynthesisDiverged(
                    f"the impression left the finite numbers (loss {loss}); lower pixel_lr ({how.pixel_lr})"
                )
    return Impression(images, labels, losses, norms, duals, _distance(images, start))


def all_finite(images: Tensor) -> bool:
    """Whether no value is NaN or infinite; looks at a part of the set at a time."""
    return all(bool(torch.isfinite(part).all()) for part in images.split(_LOOKED_AT))


def _distance(images: Tensor, start: Tensor) -> float:
    """Root mean square difference of two sets."""
    pairs = zip(images.split(_LOOKED_AT), start.split(_LOOKED_AT), strict=True)
    return math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs) / images.numel())


def _objective(
    scores: Tensor, labels: Tensor, features: Tensor, weight: Tensor, dual: Tensor, how: ImpressionSettings
) -> Tensor:
    """The sum of L over batches, so that each image has the gradient it has in its own batch."""
    total = scores.new_zeros(())
    errors = scores.softmax(1) - one_hot(labels, scores.shape[1]) if how.constraint else None
    for first in range(0, len(labels), how.synthesis_batch):
        batch = slice(first, first + how.synthesis_batch)
        total = total + cross_entropy(scores[batch], labels[batch])
        if errors is not None:
            m = errors[batch].T @ features[batch] / len(labels[batch]) + how.gamma * weight
            total = total + how.rho / 2 * m.square().sum() + (dual * m).sum()
    return total


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for parameters inside; as before afterwards."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        with evaluating(model):
            yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


@contextmanager
def _captured(layer: nn.Module) -> Iterator[list[Tensor]]:
    """A list whose only item is the layer's latest input."""
    latest: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        latest[:] = [inputs[0]]

    hook = layer.register_forward_pre_hook(keep)
    try:
        yield latest
    finally:
        hook.remove()
