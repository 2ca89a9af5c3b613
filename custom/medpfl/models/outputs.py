"""What a model's output holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from medpfl.core.errors import UserError
from medpfl.core.reasons import Reason

NO_FEATURES = Reason("{model} hands its last linear layer no row of features for each image")


def logits(output: Any) -> Tensor:
    """The logits in a model's output: the output itself, or its first item.

    MONAI's ViT returns hidden states too, its UNet++ a list of one. Of deep supervision the factory builds none.

    Raises:
        UserError: the output is neither a tensor nor a tuple or list that starts with one.
    """
    first = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(first, Tensor):
        raise UserError(
            f"the model returns {type(output).__name__}; a network must return its logits as a tensor (B, classes) or "
            "(B, classes, ...), or a tuple that starts with them"
        )
    return first


def with_features(model: nn.Module, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of a batch, and what the model hands a layer for them: the features that it classifies, say.

    Args:
        model: in the mode that it is to have.
        layer: of the model, such as :meth:`medpfl.core.parameters.ParameterSplit.classification_layer` gives.
        x: (B, ...).

    Raises:
        UserError: the pass does not come to the layer, or comes with anything but a row of features for each sample.
    """
    given: list[Tensor] = []
    handle = listen(layer, given)
    try:
        output = logits(model(x))
    finally:
        handle.remove()
    if not given or given[-1].ndim != 2 or len(given[-1]) != len(x):
        raise UserError(NO_FEATURES(type(model).__name__))
    return output, given[-1]


def listen(layer: nn.Module, given: list[Tensor], *, once: bool = False) -> RemovableHandle:
    """Puts what a layer is called with into a list, by position or by name, until the handle is removed.

    Args:
        layer: of a model that is about to be called.
        given: gets the first tensor of each call.
        once: of the next call alone, whatever becomes of the pass.
    """

    def keep(_: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if once:
            handle.remove()
        given.extend([x for x in (*inputs, *named.values()) if isinstance(x, Tensor)][:1])

    handle = layer.register_forward_pre_hook(keep, with_kwargs=True)
    return handle
