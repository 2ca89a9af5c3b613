"""Parts of a model that nobody trains and nobody sends: they are what the run began with, at all parties."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from medpfl.core.declarations import Declaration
from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def frozen_names(model: nn.Module, declaration: Declaration, x: Tensor | None = None) -> frozenset[str]:
    """The entries of ``model.state_dict()`` that a declaration speaks of.

    Raises:
        UserError: it speaks of slices of entries, or of all that is trained.
    """
    found = declaration.personal(model, x)
    if sliced := next((name for name, piece in found.items() if piece is not None), None):
        raise UserError(f"--frozen: {sliced!r} can be frozen as a whole only; name modules and not heads:P")
    held = {id(t) for name, t in model.state_dict(keep_vars=True).items() if name in found}
    if all(id(p) in held for p in model.parameters()):
        raise UserError(f"--frozen leaves nothing of {type(model).__name__} to train")
    return frozenset(name for name, t in model.state_dict(keep_vars=True).items() if id(t) in held)


def freeze(model: nn.Module, names: Collection[str]) -> None:
    """No gradient for these entries; batch norm whose running statistics are among them stays in eval mode."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in names:
            parameter.requires_grad_(False)
    for path, layer in batch_norm_layers(model).items():
        if any((f"{path}.{name}" if path else name) in names for name in _RUNNING):
            layer.register_forward_pre_hook(_in_eval_mode)


def _in_eval_mode(layer: nn.Module, _: tuple[Tensor, ...]) -> None:
    """Before each pass: whoever trains the model puts all of it into training mode."""
    layer.eval()
