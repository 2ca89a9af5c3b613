"""A model's layers, by type and never by name: batch norm, the classifier, all weighted layers from bottom to top."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from medpfl.core.errors import UserError

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def batch_norm_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Batch-norm layers by module path, in the model's order.

    A layer that the model holds under two paths is listed under both, as in ``state_dict()``.
    """
    return {
        path: module for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, _BatchNorm)
    }


def classification_layer(model: nn.Module) -> tuple[str, nn.Linear]:
    """Path and module of the last linear layer, which is what classifies.

    Raises:
        UserError: the model has no linear layer.
    """
    linear = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UserError(
            f"{type(model).__name__} has no linear layer that classifies: choose a model that ends in one, "
            "or a method that does not need it"
        )
    return linear[-1]


def weighted_layers(model: nn.Module) -> list[list[str]]:
    """The entries of ``model.state_dict()``, grouped into weighted layers from bottom to top.

    A weighted layer is a module that holds weights (a parameter of two or more dimensions), has none below it and does
    not normalise. Every other entry belongs to the weighted layer before it, in the order of registration:
    normalisation, activations with parameters, scales. Entries of a module that contains weighted layers (a class
    token, the input projection of ``nn.MultiheadAttention``) belong to the first of these. An entry that shares its
    tensor with an earlier one goes with that one, so that no tensor lies in two layers.

    Returns:
        Groups of entry names; every entry is in exactly one. Empty if the model has no state.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    weighted = [path for path, module in modules.items() if _is_weighted(module)]
    order = {path: position for position, path in enumerate(modules)}
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


def _is_weighted(module: nn.Module) -> bool:
    if isinstance(module, _NORMS) or not any(p.ndim > 1 for p in module.parameters(recurse=False)):
        return False
    return not any(_is_weighted(child) for child in module.modules() if child is not module)
