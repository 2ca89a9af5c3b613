"""Optimizers by torch's names, and which settings each takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from inspect import isclass, signature, unwrap
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from medpfl.core.settings import Settings

_UNFIT = {"LBFGS", "SparseAdam", "Muon"}
"""One evaluates the loss several times a step, one is for sparse gradients, one for matrices alone."""

_KEPT_OUT = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods beside ``step`` that torch keeps out of what it compiles."""


def _torchs() -> Iterator[tuple[str, type[Optimizer]]]:
    for name, kind in vars(torch.optim).items():
        if isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer and name not in _UNFIT:
            yield name.lower(), kind


def _uncompiled(kind: type[Optimizer]) -> type[Optimizer]:
    """torch's optimizer without the wrappers that keep it out of what ``torch.compile`` traces: nothing is compiled.

    They import the compiler at the first step, which is a third of the start of a site's process and 70 MB of it.
    """
    methods = {name: unwrap(getattr(kind, name)) for name in _KEPT_OUT}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(unwrap(kind.step))})


_KINDS = {name: _uncompiled(kind) for name, kind in sorted(_torchs())}
OPTIMIZERS = tuple(_KINDS)
"""The names of ``--set optimizer``."""
_ARGUMENTS = {
    "momentum": ("momentum",),
    "nesterov": ("nesterov",),
    "beta1": ("betas",),
    "beta2": ("betas",),
    "square_decay": ("alpha", "rho"),
    "eps": ("eps",),
}
"""What torch calls a setting that only some optimizers take."""
_OTHERS = {("asgd", "square_decay"), ("adafactor", "eps")}
"""Arguments of the same name that mean something else."""
OWN_TO_SOME = (*_ARGUMENTS, "weight_decay")
"""Settings that belong to the optimizer they were chosen for."""


@cache
def argument(optimizer: str, setting: str) -> str | None:
    """What an optimizer calls a setting; None if it has no such argument."""
    if (optimizer, setting) in _OTHERS:
        return None
    known = signature(_KINDS[optimizer]).parameters
    return next((name for name in _ARGUMENTS.get(setting, (setting,)) if name in known), None)


def made(settings: Settings, lr: float, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer, afresh.

    Args:
        settings: of training (:class:`medpfl.training.settings.Training`); :func:`problem` has none with them.
        lr: the learning rate in force.
        parameters: those that are trained at all; all tensors of a device take one step together.
    """
    given: dict[str, Any] = {"lr": lr}
    values = settings.model_dump()
    if argument(settings.optimizer, "weight_decay"):
        given["weight_decay"] = settings.weight_decay
    for name in _own(settings):
        given[argument(settings.optimizer, name)] = values[name]
    if "betas" in given:
        given["betas"] = (settings.beta1, settings.beta2)
    if "nesterov" in given:
        given["nesterov"] = bool(settings.nesterov)
    return _KINDS[settings.optimizer](parameters, **given, foreach=True)


def problem(settings: Settings) -> str | None:
    """Which setting the optimizer does not take, in words."""
    for name in (*_own(settings), *(["weight_decay"] if settings.weight_decay else [])):
        if argument(settings.optimizer, name) is None:
            takes = [n for n in ("lr", *OWN_TO_SOME) if argument(settings.optimizer, n)]
            return f"setting {name} has no meaning for optimizer {settings.optimizer}; it takes {', '.join(takes)}"
    if settings.nesterov and not settings.momentum:
        return "setting nesterov looks ahead along the momentum: give momentum too, e.g. momentum=0.9"
    return None


def _own(settings: Settings) -> list[str]:
    """Settings of some optimizers alone whose value is another than the default."""
    fields = type(settings).model_fields
    return [name for name in _ARGUMENTS if getattr(settings, name) != fields[name].default]
