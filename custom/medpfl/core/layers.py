"""A model's layers, by type and never by name: batch norm, the classifier, all weighted layers from bottom to top."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from medpfl.core.errors import UserError

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, all modules are in eval mode; afterwards each is in the mode that it was in."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


@contextmanager
def state_alone_changes(model: nn.Module) -> Iterator[None]:
    """Afterwards buffers that are no part of the model's state are what they were, whatever passes made of them."""
    before = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set
    ]
    values = {id(buffer): buffer.clone() for _, _, buffer in before}
    try:
        yield
    finally:
        for module, name, buffer in before:
            setattr(module, name, values[id(buffer)])


def batch_norm_layers(model: nn.Module, x: Tensor | None = None) -> dict[str, nn.Module]:
    """Batch-norm layers by module path.

    A layer that the model holds under two paths is listed under both, as in ``state_dict()``.

    Args:
        model: is afterwards what it was.
        x: a batch of inputs. Layers are then in the order in which a forward pass first uses them, those that it does
            not use first; without it in the order in which the model registers them.
    """
    found = {path: m for path, m in model.named_modules(remove_duplicate=False) if isinstance(m, _BatchNorm)}
    if x is None or len(found) < 2:
        return found
    order = _by_use(model, {path: position for position, path in enumerate(found)}, _first_uses(model, x))
    return {path: found[path] for path in order}


def how_to_get_batch_norm(model: nn.Module) -> str:
    """What to do where a method needs batch norm and a network has none, in words.

    MONAI's networks have it in the place of another norm if the argument ``norm`` or ``norm_name`` says so.
    """
    known = inspect.signature(type(model).__init__).parameters
    argument = next((name for name in ("norm", "norm_name") if name in known), "")
    if not argument or not type(model).__module__.startswith("monai."):
        return "choose a model with batch norm"
    norms = sorted({type(m).__name__ for m in model.modules() if isinstance(m, _NORMS)})
    instead = f" in the place of {' and '.join(norms)}" if norms else ""
    return f"give it batch norm{instead} with --model-arg {argument}=batch"


def any_linear(model: nn.Module) -> bool:
    """Whether the model has a linear layer."""
    return any(isinstance(module, nn.Linear) for module in model.modules())


def classification_layer(model: nn.Module, x: Tensor | None = None) -> tuple[str, nn.Linear]:
    """Path and module of the last linear layer, which is what classifies.

    Args:
        model: is afterwards what it was.
        x: a batch of inputs. The last layer is then the one that a forward pass comes to last; without it the one that
            is registered last, which is another one in a model that registers its head first.

    Raises:
        UserError: the model has no linear layer.
    """
    linear = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UserError(
            f"{type(model).__name__} has no linear layer that classifies: choose a model that ends in one, "
            "or a method that does not need it"
        )
    used = _first_uses(model, x) if x is not None and len(linear) > 1 else {}
    places = [max((used[id(t)] for t in layer.parameters() if id(t) in used), default=-1) for _, layer in linear]
    return max(zip(places, range(len(linear)), linear, strict=True))[2]


def weighted_layers(model: nn.Module, x: Tensor | None = None) -> list[list[str]]:
    """The entries of ``model.state_dict()``, grouped into weighted layers from bottom to top.

    A weighted layer is a module that holds weights (a parameter of two or more dimensions), has none below it and does
    not normalise. Every other entry belongs to the weighted layer before it: normalisation, activations with
    parameters, scales. Entries of a module that contains weighted layers (a class token, the input projection of
    ``nn.MultiheadAttention``) belong to the first of these. An entry that shares its tensor with an earlier one goes
    with that one, so that no tensor lies in two layers.

    Args:
        model: is afterwards what it was.
        x: a batch of inputs. Layers then lie in the order in which a forward pass first uses them, and those that it
            does not use at the bottom; without it in the order of registration, which is another one in networks whose
            decoder is nested around the layers below (MONAI's UNet).

    Returns:
        Groups of entry names; every entry is in exactly one. Empty if the model has no state.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    order = {path: position for position, path in enumerate(modules)}
    if x is not None and (used := _first_uses(model, x)):
        order = _by_use(model, order, used)
    weighted = sorted((path for path, module in modules.items() if _is_weighted(module)), key=order.__getitem__)
    groups: dict[str, list[str]] = {path: [] for path in weighted}
    home: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        owner = name
        while owner not in modules:
            owner = owner.rpartition(".")[0]
        inside = [path for path in weighted if not owner or path == owner or path.startswith(owner + ".")]
        before = [path for path in weighted if order[path] < order[owner]]
        group = inside[0] if inside else before[-1] if before else weighted[0] if weighted else ""
        if isinstance(value, Tensor):
            group = home.setdefault(id(value), group)
        groups.setdefault(group, []).append(name)
    return [names for names in groups.values() if names]


def _by_use(model: nn.Module, registered: dict[str, int], used: dict[int, int]) -> dict[str, int]:
    """Positions of modules: those that the pass does not use, as registered; then those that it uses.

    A module is used where a tensor of its own is, or of what lies in it: containers stay before their contents.

    Args:
        model: they are of it.
        registered: the positions in which they are registered, of those that are looked at.
        used: :func:`_first_uses`.
    """
    modules = {path: module for path, module in model.named_modules(remove_duplicate=False) if path in registered}

    def key(path: str) -> tuple[float, int]:
        inside = [used[id(t)] for t in (*modules[path].parameters(), *modules[path].buffers()) if id(t) in used]
        return min(inside, default=-1), registered[path]

    return {path: position for position, path in enumerate(sorted(modules, key=key))}


def _first_uses(model: nn.Module, x: Tensor) -> dict[int, int]:
    """In which place a forward pass in eval mode first reckons with each of the model's tensors, by its ``id``.

    Tensors and not modules are watched: attention in torch hands its projections' weights on without calling them.
    """
    watched = {id(t) for t in (*model.parameters(), *model.buffers())}
    watch = _Watch(watched)
    with evaluating(model), torch.no_grad(), watch:
        model(x)
    return watch.found


class _Watch(TorchFunctionMode):
    """Notes the place of the first call with each of the watched tensors that gives tensors (and not a shape)."""

    def __init__(self, watched: set[int]) -> None:
        super().__init__()
        self.watched, self.found = watched, {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(isinstance(value, Tensor) for value in tree_leaves(result)):
            for value in tree_leaves((args, kwargs)):
                if id(value) in self.watched:
                    self.found.setdefault(id(value), len(self.found))
        return result


def _is_weighted(module: nn.Module) -> bool:
    if isinstance(module, _NORMS) or not any(p.ndim > 1 for p in module.parameters(recurse=False)):
        return False
    return not any(_is_weighted(child) for child in module.modules() if child is not module)
