"""Constant class: how often each class occurs in each part of a site's data, from exact measures.

Under a model that answers class c whatever it sees, the accuracy is the share of c, and the training loss is affine in
it: with logit M for c and 0 for the K - 1 others, it is log(e^M + K - 1) - M * share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from medpfl.audit.prior import prior_images
from medpfl.audit.victim import Foothold, Known, Line, ask_anew, hello
from medpfl.core.messages import Message
from medpfl.core.parameters import State
from medpfl.core.seeding import generator
from medpfl.core.site_data import Part
from medpfl.models import logits

Shares = dict[Part, dict[int, float]]
_STEPS = 60
"""Of training that makes a model answer one class, where its last layer cannot be set."""


def constant_class(line: Line, known: Known) -> tuple[Shares, str]:
    """Estimated share of each class, by part, as far as the site's answers say it; and by what way.

    Where the server sets the classification layer, training tasks tell of the training part by their loss, and of the
    validation part, for the measures of what came in go out with the next update. What is then still unknown is asked
    by tasks of validation and test.
    """
    shares: Shares = {"train": {}, "validation": {}, "test": {}}
    # Far logits make the loss exact, and near ones are a small jump.
    margin = 8.0 if known.policy.largest_jump else 1e4
    states = [constant_state(known, label, margin) for label in range(known.classes)]
    exact = _sets_classifier(known)
    foothold = Foothold(line, known)
    for label in range(known.classes) if exact else ():
        exchange = foothold.train_from(states[label])
        if exchange is None:
            break
        _note(shares, "validation", label, _accuracy(exchange.update.metrics, "validation"))
        loss = exchange.update.metrics.get("train_loss")
        if isinstance(loss, int | float) and math.isfinite(loss):
            whole = math.log(1 + (known.classes - 1) * math.exp(-margin)) + margin
            shares["train"][label] = min(1.0, max(0.0, (whole - loss) / margin))
    line.begin()
    if line.ask(hello(known)) is None:
        return shares, foothold.way
    for label in range(known.classes):
        if label in shares["validation"] and label in shares["test"]:
            continue
        round_ = known.config.rounds
        validate = Message("validate", round_, states[label], {"best_round": round_})
        both = ask_anew(line, known, validate, Message("test", round_, {}, {"selected_round": round_}))
        if not (answers := both or ask_anew(line, known, validate)):
            break
        _note(shares, "validation", label, _accuracy(answers[0].metrics, "validation"))
        if not both:
            break
        tested = both[1].metrics.get("test")
        _note(shares, "test", label, _accuracy(tested, "last") if isinstance(tested, Mapping) else None)
    return shares, foothold.way


def constant_state(known: Known, label: int, margin: float) -> State:
    """A shared state under which the model answers one class for any image.

    Where the server sets the classification layer, exactly, with logits ``margin`` and 0; else as far as training the
    shared entries on images without data brings it.
    """
    if not _sets_classifier(known):
        return _steered(known, label)
    path, _ = known.split.classification_layer(known.make_model())
    state = {name: tensor.clone() for name, tensor in known.initial_shared.items()}
    state[f"{path}.weight"].zero_()
    state[f"{path}.bias"].zero_()[label] = margin
    return state


def _sets_classifier(known: Known) -> bool:
    path, layer = known.split.classification_layer(known.make_model())
    return layer.bias is not None and {f"{path}.weight", f"{path}.bias"} <= known.whole


def _steered(known: Known, label: int) -> State:
    model = known.make_model()
    draw = generator(known.config.seed, "audit", "steer", str(label))
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if name in known.whole], lr=3e-3)
    aim = torch.full((32,), label)
    for step in range(_STEPS):
        # In the mode of training and in that of evaluation, for the site uses both.
        model.train(step % 2 == 0)
        loss = cross_entropy(logits(model(prior_images(32, known.shape, draw))), aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return known.split.shared_state(model)


def _accuracy(metrics: object, part: str) -> float | None:
    found: Any = metrics.get(part) if isinstance(metrics, Mapping) else None
    value = found.get("accuracy") if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _note(shares: Shares, part: Part, label: int, value: float | None) -> None:
    if value is not None:
        shares[part].setdefault(label, value)


def share_errors(shares: Shares, labels: Mapping[Part, torch.Tensor], classes: int) -> dict[str, float | None]:
    """By part: the largest error over all classes; None where not all classes were answered."""
    errors: dict[str, float | None] = {}
    for part, known in labels.items():
        true = torch.bincount(known, minlength=classes).double() / len(known)
        found = shares.get(part, {})
        errors[part] = max(abs(found[c] - float(true[c])) for c in range(classes)) if len(found) == classes else None
    return errors
