"""How a site takes its steps: the optimizer, and its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from medpfl.core.settings import Settings, Value, setting


class Training(Settings):
    """Settings of local training, for every method."""

    lr: float = setting(0.01, "learning rate", gt=0)
    batch_size: int = setting(32, "samples in a step", gt=0)
    momentum: float = setting(0.0, "momentum of SGD", ge=0)
    nesterov: int = setting(0, "1 looks ahead along the momentum", ge=0, le=1)
    weight_decay: float = setting(0.0, "L2 penalty on all parameters", ge=0)


class Trainer(ABC):
    """Takes the steps of a site.

    Attributes:
        settings_class: its settings.
    """

    settings_class: ClassVar[type[Settings]] = Settings

    def __init__(self, settings: Any):
        self.settings = settings

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Trainer:
        """From all settings of a run, of which it takes its own."""
        return cls(cls.settings_class(**{name: values[name] for name in cls.settings_class.model_fields}))

    @property
    def batch_size(self) -> int:
        """Samples in a step."""
        return self.settings.batch_size

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.settings.lr

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer, afresh, for those parameters that are trained at all."""

    def refuses(self) -> str | None:
        """Why the settings make no sense together, in words."""
        return None


class SGD(Trainer):
    """Stochastic gradient descent; the optimizer starts afresh in each round."""

    settings_class = Training

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch's, all tensors in one step."""
        return torch.optim.SGD(
            [p for p in parameters if p.requires_grad],
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            nesterov=bool(self.settings.nesterov),
            weight_decay=self.settings.weight_decay,
            foreach=True,
        )

    def refuses(self) -> str | None:
        """Nesterov's step is one of momentum."""
        if self.settings.nesterov and not self.settings.momentum:
            return "setting nesterov looks ahead along the momentum: give momentum too, e.g. momentum=0.9"
        return None
