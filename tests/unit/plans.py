"""A plan of a tiny model, and sites' answers by hand."""

import torch
from tiny import config
from torch import nn

from medpfl.algorithms.fedap.mixings import STATISTICS
from medpfl.core.declarations import parse_declaration
from medpfl.core.messages import Update, named
from medpfl.core.parameters import ParameterSplit
from medpfl.core.server_state import ServerState
from medpfl.server.rounds import Plan, advance, messages


def make_plan(algorithm="fedavg", **fields):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    # Answers are numbers chosen to be reckoned with, and so of any size.
    run = config(algorithm, **{"large_updates": "accept", **fields})
    split = ParameterSplit(model, parse_declaration(run.resolved_personal))
    pretrained = model.state_dict() if run.mixer.under_model else None
    channels = {channel: part for part in run.parts for channel in part.channels(run, model, split)}
    return Plan(run, split, split.shared_state(model), channels, pretrained)


def statistics(mean, variance=1.0, layer="1"):
    """Of one layer of two channels, of which only the first differs between sites."""
    values = {"mean": [mean, 0.0], "variance": [variance, 1.0]}
    return named(STATISTICS, {f"{layer}/{k}": torch.tensor(v, dtype=torch.float64) for k, v in values.items()})


def hello(site, train=10, **tensors):
    return Update(site, 0, tensors, {"samples": {"train": train, "validation": 0, "test": 0}})


def scored(accuracy):
    """A site's measures with this accuracy."""
    rest = {"balanced_accuracy": accuracy, "auroc": None, "auroc_ci95": None, "auroc_classes": 0}
    return {"n": 10, "accuracy": accuracy, **rest}


def trained(plan, site, round_, value, validation=None, extra=None):
    """An update whose shared entries all have the same value."""
    tensors = {name: torch.full_like(t, float(value)) for name, t in plan.initial_shared.items()}
    scores = None if validation is None else scored(validation)
    metrics = {"train_loss": float(value), "validation": scores}
    return Update(site, round_, tensors | (extra or {}), metrics)


def validated(site, round_, accuracy):
    return Update(site, round_, {}, {"validation": scored(accuracy)})


def final_answer(site, round_):
    test = {"selected": scored(1.0), "last": scored(1.0)}
    return Update(site, round_, {}, {"test": test, "tested": {"selected": round_, "last": round_}})


def joined(plan, means=None, samples=(10, 10, 10)):
    names = plan.config.site_names
    means = means or [None] * len(names)
    replies = [
        hello(s, n, **(statistics(m) if m is not None else {})) for s, n, m in zip(names, samples, means, strict=False)
    ]
    return advance(plan, ServerState(), replies, 0.0)


def round_of(plan, state, *values, **options):
    """The next state when site i answers with the i-th value; None: it does not answer."""
    replies = [
        trained(plan, s, state.round + 1, v, **options)
        for s, v in zip(plan.config.site_names, values, strict=True)
        if v is not None
    ]
    return advance(plan, state, replies, 1.5)


def next_values(plan, state):
    """Each site's next shared state as one number; all its entries must agree on it."""
    values = []
    for message in messages(plan, state).values():
        (value,) = {v for t in message.tensors.values() for v in t.flatten().tolist()}
        values.append(value)
    return values


# D = 1, 3 and 2 between the first, second and third site.
MEANS = (0.0, 1.0, 3.0)
