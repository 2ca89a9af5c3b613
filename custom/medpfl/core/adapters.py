"""Which entries of a model's state are adapters: small layers that are trained in the place of those they sit on."""

from __future__ import annotations

from torch import nn

ADAPTER = "lora_"
"""How their entries' own names begin (:mod:`medpfl.models.lora`)."""


def adapter_names(model: nn.Module) -> list[str]:
    """Of ``model.state_dict()``, in its order."""
    return [name for name in model.state_dict() if name.rpartition(".")[2].startswith(ADAPTER)]
