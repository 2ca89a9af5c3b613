"""Membership inference on what an honest server gets: whether a sample was among a site's training data.

Three scores of a candidate: its loss under the last model that the site sent (Yeom et al., Privacy risk in machine
learning, CSF 2018); how far the updates lower its loss; and the cosine between an update and the step that the
candidate's own gradient would make (Li et al., Effective passive membership inference attacks in federated learning
against overparameterized models, ICLR 2023), the last two added up over rounds. Candidates are the site's training
part against its test part; the attacker knows their labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from medpfl.audit.victim import Exchange, Known, Truth
from medpfl.models import logits
from medpfl.tasks.measures import measures

_MOST = 200
"""Candidates of each kind."""


@dataclass(frozen=True)
class Membership:
    """How well training samples are told from others.

    Attributes:
        score: which score, in words.
        auc: area under the ROC curve, 0.5 for a guess.
        interval: its 95 % interval (DeLong).
        members: number of training samples asked about.
        others: number of test samples.
    """

    score: str
    auc: float
    interval: tuple[float, float]
    members: int
    others: int


def membership(known: Known, exchanges: list[Exchange], truth: Truth) -> list[Membership]:
    """The scores over honest rounds. Empty without rounds or test samples."""
    if not exchanges or "test" not in truth.images:
        return []
    bag = known.shape[0] if len(known.shape) == 4 else 1
    x, y, member = [], [], []
    for part in ("train", "test"):
        images, labels = truth.images[part], truth.labels[part]
        if bag > 1:
            images = images.unflatten(0, (-1, bag))
        x.append(images[:_MOST])
        y.append(labels[:_MOST])
        member += [part == "train"] * len(labels[:_MOST])
    candidates, labels, is_member = torch.cat(x), torch.cat(y), np.array(member, dtype=int)
    lowered, along = np.zeros(len(labels)), np.zeros(len(labels))
    for exchange in exchanges:
        lowered += _lowered(known, exchange, candidates, labels)
        along += _along(known, exchange, candidates, labels)
    last = {name: exchanges[-1].update.tensors[name] for name in exchanges[-1].sent}
    return [
        _judged("a low loss of the last model", -_losses(known, last, candidates, labels).double().numpy(), is_member),
        _judged("the update lowers its loss", lowered, is_member),
        _judged("the update points along its gradient", along, is_member),
    ]


def _judged(score: str, values: np.ndarray, member: np.ndarray) -> Membership:
    _, inverse = np.unique(values, return_inverse=True)
    ranks = inverse / max(1, inverse.max())  # equal values stay equal
    found = measures(np.stack([1 - ranks, ranks], 1), member)
    low, high = found["auroc_ci95"]
    return Membership(score, found["auroc"], (low, high), int(member.sum()), int((1 - member).sum()))


def _lowered(known: Known, exchange: Exchange, x: Tensor, y: Tensor) -> np.ndarray:
    shared = {name: exchange.update.tensors[name] for name in exchange.sent}
    before, after = (_losses(known, state, x, y) for state in (exchange.sent, shared))
    return (before - after).double().numpy()


def _losses(known: Known, shared: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    model = known.model_of(shared).eval()
    with torch.inference_mode():
        parts = zip(x.split(64), y.split(64), strict=True)
        return torch.cat([cross_entropy(logits(model(a)), b, reduction="none") for a, b in parts])


def _along(known: Known, exchange: Exchange, x: Tensor, y: Tensor) -> np.ndarray:
    """Cosine between the update and each candidate's negative gradient, over the shared parameters."""
    model = known.model_of(exchange.sent).eval()
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if n in known.whole), strict=True)
    change = torch.cat([exchange.change[name].flatten() for name in names])
    found = []
    for image, label in zip(x, y, strict=True):
        loss = cross_entropy(logits(model(image[None])), label[None])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        found.append(float(-(flat @ change) / (flat.norm() * change.norm()).clamp_min(1e-20)))
    return np.array(found)
