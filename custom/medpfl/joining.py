"""The model a site starts with when it joins after training: a shared part from the server, a personal part of its own.

What the server has after the last round are the sites' mixes, not their updates, so a newcomer's shared part is a
weighted sum of mixes. The methods' papers say nothing of newcomers; the rules are ours, with the reasons beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.messages import named_statistics
from medpfl.models.attention import attention_blocks, head_entries
from medpfl.models.layers import batch_norm_layers, classification_layer
from medpfl.parameters import ParameterSplit, State
from medpfl.server.mixing import mix, sample_weights
from medpfl.server.rounds import Plan, ServerState
from medpfl.server.similarity import LayerStatistics, similarity_weights, wasserstein_distances
from medpfl.site.data import SiteData
from medpfl.site.statistics import input_statistics, running_statistics
from medpfl.statefile import serialised_bytes


@dataclass(frozen=True)
class Rule:
    """What a newcomer gets, and why."""

    what: str
    why: str


SHARED = {
    "identity": Rule("nothing", "nothing is shared"),
    "samples": Rule("the common model", "all sites have the same"),
    "uniform": Rule("the mean of the sites' models", "it has no own update to give lambda to"),
    "similarity": Rule(
        "the sites' models by similarity of its statistics under f",
        "its row of W; lambda, its own share, goes to the others in proportion, since it has no own update",
    ),
    "similarity-classifier": Rule(
        "the sites' models by similarity of its statistics under f",
        "its row of W; lambda, its own share, goes to the others in proportion, since it has no own update",
    ),
    "similarity-running": Rule(
        "the sites' models by similarity of its running batch-norm statistics",
        "as for FedAP, once the batch norm of the sites' mean model was adapted to its data",
    ),
}
"""By mixing: the newcomer's shared part."""

HEADS = Rule("copies of the shared heads, in order", "random heads would disturb the trained ones beside them")
BATCH_NORM = Rule(
    "the first model's scale and shift, statistics of its own training data",
    "other sites' batch norm never leaves them, and statistics need no labels and no training",
)
FIRST = Rule("the seeded first model's", "where every site began; no other site's personal part is to be had")
"""The newcomer's personal part: attention heads, batch norm, all else."""


@dataclass(frozen=True)
class Start:
    """A newcomer's model before it trains.

    Attributes:
        state: of the whole model.
        row: how much of each site's model is in the shared part; empty where nothing is shared.
        sent_bytes: statistics that the newcomer sent for it.
        received_bytes: what it received: f and an impression where there are, and the shared part.
    """

    state: State
    row: Mapping[str, float]
    sent_bytes: int = 0
    received_bytes: int = 0


def start(plan: Plan, server: ServerState, first: State, make_model: Callable[[], nn.Module], data: SiteData) -> Start:
    """The model that a newcomer starts with.

    Args:
        plan: of the run; with f where the mixing needs it.
        server: its state after the last round.
        first: the personal part of the seeded first model.
        make_model: a fresh model on the data's device.
        data: the newcomer's; only its training part is looked at.
    """
    mixing, model = plan.config.resolved_mixing, make_model()
    sites = [name for name in plan.config.site_names if name in server.shared and name in server.samples]
    sent = received = 0
    shared: State = {}
    row = np.zeros(0)
    if plan.split.shared_names:
        row = sample_weights([server.samples[s] if mixing == "samples" else 1 for s in sites])[0]
        if mixing.startswith("similarity"):
            own, received = _own_statistics(plan, _shared(server, sites, row), first, make_model(), data)
            sent = serialised_bytes(named_statistics(own))
            sites = [name for name in sites if name in server.statistics]
            row = newcomer_row([server.statistics[name] for name in sites], _arrays(own))
        shared = _shared(server, sites, row)
    _fill(model, plan.split, shared, first, data)
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    weights = dict(zip(sites, row.tolist(), strict=True)) if shared else {}
    received += serialised_bytes(shared) + serialised_bytes(server.impression)
    return Start(state, weights, sent, received)


def _own_statistics(
    plan: Plan, mean: State, first: State, model: nn.Module, data: SiteData
) -> tuple[dict[str, tuple[Tensor, Tensor]], int]:
    """The newcomer's statistics that its row rests on, and the bytes it received to take them."""
    mixing = plan.config.resolved_mixing
    if mixing == "similarity-running":
        _fill(model, plan.split, mean, first, data)
        take_statistics(model, data)  # also where batch norm is shared
        return running_statistics(model), serialised_bytes(mean)
    model.load_state_dict(plan.pretrained)
    layers = batch_norm_layers(model) if mixing == "similarity" else dict([classification_layer(model)])
    return input_statistics(model, layers, _inputs(data)), serialised_bytes(plan.pretrained)


def newcomer_row(statistics: Sequence[LayerStatistics], own: LayerStatistics) -> np.ndarray:
    """The row of FedAP's W of a site without an update of its own: by 1 / distance, with the sum 1.

    Args:
        statistics: of the M sites.
        own: the newcomer's.

    Returns:
        (M,).
    """
    return similarity_weights(wasserstein_distances([*statistics, own]), 0.0)[-1, :-1]


def personal_rules(split: ParameterSplit, model: nn.Module) -> list[Rule]:
    """The rules by which a newcomer's personal part is made."""
    if not split.shared_names:
        return [FIRST]
    rules = []
    names = {name for name in split.personal_names if model.state_dict()[name].is_floating_point()}
    normalisation = {name for path, m in batch_norm_layers(model).items() for name in _entries(path, m)}
    divided = _head_entries(model) if split.heads_divided else set()
    if names & divided:
        rules.append(HEADS)
    if names & normalisation:
        rules.append(BATCH_NORM)
    if names - normalisation - divided:
        rules.append(FIRST)
    return rules


def _fill(model: nn.Module, split: ParameterSplit, shared: State, first: State, data: SiteData) -> None:
    if shared:
        split.load_shared(model, shared)
    split.load_personal(model, first)
    if not split.shared_names:
        return  # nothing of the run is in it: the first model as it is
    if split.heads_divided:
        repeat_shared_heads(model, split)
    personal = set(split.personal_names)
    take_statistics(model, data, {p for p in batch_norm_layers(model) if f"{p}.running_mean" in personal})


def repeat_shared_heads(model: nn.Module, split: ParameterSplit) -> None:
    """Gives personal head i, of P, the weights of shared head i modulo their number, in every attention block."""
    state, blocks = model.state_dict(), attention_blocks(model)
    with torch.no_grad():
        for path, (personal, heads) in split.heads.items():
            for head in range(personal):
                source = personal + head % (heads - personal)
                to, of = (head_entries(blocks[path], range(h, h + 1)) for h in (head, source))
                for name, (dim, rows) in to.items():
                    target = state[f"{path}.{name}" if path else name]
                    index = torch.tensor(of[name][1], device=target.device)
                    taken = target.index_select(dim, index)
                    target.index_copy_(dim, torch.tensor(rows, device=target.device), taken)


def take_statistics(model: nn.Module, data: SiteData, paths: set[str] | None = None) -> None:
    """Sets batch norm's running statistics to those of its inputs over the training data, pooled exactly.

    Layer after layer in the model's order, so that each sees what it will see in use.

    Args:
        model: changed in place.
        data: its training part is used.
        paths: of the layers; by default all.
    """
    for path, layer in batch_norm_layers(model).items():
        if (paths is None or path in paths) and layer.running_mean is not None:
            for mean, variance in input_statistics(model, {path: layer}, _inputs(data)).values():
                layer.running_mean.copy_(mean)
                layer.running_var.copy_(variance)


def _inputs(data: SiteData) -> Iterator[Tensor]:
    samples = max(1, min(256 // data.images_per_sample, data.samples("train")))
    return (x for x, _ in data.batches("train", samples))


def _shared(server: ServerState, sites: Sequence[str], row: np.ndarray) -> State:
    """The weighted sum of sites' mixes; equal mixes (FedAvg) are their own sum, to the last bit."""
    states = [server.shared[name] for name in sites]
    if all(state is states[0] for state in states):
        return states[0]
    return mix(row[None], [dict(state) for state in states])[0]


def _arrays(statistics: Mapping[str, tuple[Tensor, Tensor]]) -> LayerStatistics:
    return {path: (mean.numpy(), variance.numpy()) for path, (mean, variance) in statistics.items()}


def _entries(path: str, module: nn.Module) -> set[str]:
    return {f"{path}.{name}" if path else name for name in module.state_dict()}


def _head_entries(model: nn.Module) -> set[str]:
    blocks = attention_blocks(model).items()
    return {f"{path}.{name}" for path, block in blocks for name in head_entries(block, range(block.num_heads))}
