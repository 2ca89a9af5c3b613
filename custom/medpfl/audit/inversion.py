"""Inversion: images whose gradient is the update that a site sent, for the job's own network and honest weights.

Geiping, Bauermeister, Dröge, Moeller: Inverting gradients - how easy is it to break privacy in federated learning?
NeurIPS 2020: minimise 1 - cos(update, update of the made images) + total variation, by Adam on the gradient's sign.
The attacker is given the labels, and repeats the site's local steps in their order, which follows from the run's seed,
as SGD makes them: of another optimizer's update it knows the network alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from medpfl.audit.prior import prior_images
from medpfl.audit.victim import Exchange, Known
from medpfl.core.layers import batch_norm_layers
from medpfl.core.seeding import generator, seed_global
from medpfl.core.site_data import batch_sizes
from medpfl.models import logits

_TOTAL_VARIATION = 1e-3
_ITERATIONS = 400
_MOST_STEPS = 8
"""Local steps that are repeated; an update of more is taken for one of so many."""


def invert(known: Known, exchange: Exchange, labels: Tensor, seconds: float) -> Tensor:
    """Images (n, C, H, W), or bags, by gradient matching.

    Args:
        known: the run.
        exchange: an honest first round.
        labels: (n,) of the training samples, in the site's order.
        seconds: of the processor; the search ends there at the latest.
    """
    seed_global(known.config.seed)
    model = known.model_of(exchange.sent).train()
    names = [n for n, p in model.named_parameters() if p.requires_grad and n in known.whole]
    aim = {name: exchange.change[name] for name in names}
    made = prior_images(len(labels), known.shape, generator(known.config.seed, "audit", "inversion"))
    made = (0.3 * made).requires_grad_()
    optimizer = torch.optim.Adam([made], lr=0.05)
    best, least = made.detach().clone(), float("inf")
    begun = time.process_time()
    for number in range(_ITERATIONS):
        if time.process_time() - begun > seconds:
            break
        change = _local_training(known, model, made, labels, names)
        loss = 1 - _cosine(change, aim) + _TOTAL_VARIATION * _total_variation(made)
        (made.grad,) = torch.autograd.grad(loss, [made])
        made.grad.sign_()
        if (value := float(loss.detach())) < least:
            best, least = made.detach().clone(), value
        optimizer.param_groups[0]["lr"] = 0.05 * (1.0 if number < _ITERATIONS / 2 else 0.2)
        optimizer.step()
        with torch.no_grad():
            made.clamp_(-1, 1)
    return best


def _local_training(
    known: Known, model: nn.Module, images: Tensor, labels: Tensor, names: list[str]
) -> dict[str, Tensor]:
    """What SGD makes of the shared entries, differentiable in the images."""
    settings = known.config.all_settings
    order = generator(known.config.seed, known.site, 1, "shuffle")
    start = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    now, buffers = dict(start), {name: b.clone() for name, b in model.named_buffers()}
    momentum: dict[str, Tensor] = {}
    steps = 0
    for _ in range(known.config.local_epochs):
        sizes = batch_sizes(len(labels), settings["batch_size"])
        for chosen in torch.randperm(len(labels), generator=order).split(sizes):
            if steps == _MOST_STEPS:
                break
            alone = len(chosen) * (known.shape[0] if len(known.shape) == 4 else 1) == 1
            for layer in batch_norm_layers(model).values():
                layer.train(not alone)  # as the site: a single image has no batch statistics
            scores = logits(functional_call(model, {**now, **buffers}, (images[chosen],)))
            gradients = torch.autograd.grad(
                cross_entropy(scores, labels[chosen]), list(now.values()), create_graph=True, allow_unused=True
            )
            for name, gradient in zip(list(now), gradients, strict=True):
                if gradient is None:
                    continue
                step = momentum[name] = gradient + settings["momentum"] * momentum.get(name, 0)
                if settings["nesterov"]:
                    step = gradient + settings["momentum"] * step
                now[name] = now[name] - settings["lr"] * step
            steps += 1
    return {name: now[name] - start[name] for name in names}


def _cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    product = sum((a[name] * b[name]).sum() for name in b)
    lengths = (sum(a[name].square().sum() for name in b) * sum(b[name].square().sum() for name in b)).sqrt()
    return product / lengths.clamp_min(1e-12)


def _total_variation(images: Tensor) -> Tensor:
    return (images[..., 1:, :] - images[..., :-1, :]).abs().mean() + (images[..., 1:] - images[..., :-1]).abs().mean()
