"""What optimizers leave for a site's next round: a named state that the site keeps and never sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from medpfl.core.parameters import State


@dataclass
class Memory:
    """The optimizers' states of a site's models, through a round.

    Attributes:
        state: of all of them; of a parameter that a round does not train stays what was there.
        model: whose part this is.
    """

    state: State = field(default_factory=dict)
    model: str = "model"

    def of(self, model: str) -> Memory:
        """Another model's part."""
        return Memory(self.state, model)

    def recall(self, optimizer: Optimizer, names: Sequence[str], scaler: GradScaler) -> None:
        """Gives an optimizer what the one before it left.

        Args:
            optimizer: afresh, of one group.
            names: of its parameters.
            scaler: afresh.
        """
        known: dict[str, dict[str, torch.Tensor]] = {}
        for entry, tensor in self.state.items():
            if entry.startswith(f"{self.model}/"):
                _, kind, name = entry.split("/", 2)
                known.setdefault(name, {})[kind] = tensor
        states = {i: {k: t.clone() for k, t in known[name].items()} for i, name in enumerate(names) if name in known}
        if states:
            optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
        if scaler.is_enabled() and (scale := known.get("", {}).get("scale")) is not None:
            scaler.load_state_dict(scaler.state_dict() | {"scale": float(scale)})

    def keep(self, optimizer: Optimizer, names: Sequence[str], scaler: GradScaler) -> None:
        """Takes what an optimizer leaves; likewise."""
        for index, values in optimizer.state_dict()["state"].items():
            for kind, value in values.items():
                if value is not None:
                    tensor = torch.as_tensor(value).detach().clone(memory_format=torch.contiguous_format)
                    self.state[f"{self.model}/{kind}/{names[index]}"] = tensor
        if scaler.is_enabled():
            self.state[f"{self.model}/scale/"] = torch.tensor(scaler.get_scale())


def names_of(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[str]:
    """The names that parameters have in a model."""
    known: Mapping[int, str] = {id(p): name for name, p in model.named_parameters()}
    return [known[id(p)] for p in parameters]
