"""What a model's output holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from medpfl.core.errors import UserError


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
