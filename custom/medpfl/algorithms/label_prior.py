"""Label prior: sites train with their class frequencies added to the logits, so that what is shared learns none's.

Logit adjustment: Menon et al., ICLR 2021, eq. 10; with tau = 1 the balanced softmax by which FedRoD (Chen, Chao, ICLR
2022) trains its common model, and near FedLC (Zhang et al., ICML 2022). Any method can have it (``--set prior=1``).

1. A site minimises the task's loss of f(x) + tau log p, p being the class frequencies of its own training samples.
2. What leaves, and the common model, is f. The model that the site uses is f + tau log p: the last layer's bias has it.

From there training goes on (fine-tuning at the end, a site that joins) on the plain loss, which is the same function.
With frequencies p = (n_c + s) / (n + s C) a class that a site has not seen keeps a chance; with s = 0 it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.core.errors import UserError
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.reasons import Reason
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import SiteData
from medpfl.models import logits
from medpfl.training.loop import Loss

NOT_AT_THE_END = Reason("{model} does not end in its last linear layer: prior needs a net that does")
NO_BIAS = Reason("{model}'s last linear layer has no bias, and prior needs one")
_NEVER = 1e-30
"""What a frequency of 0 counts as: its logarithm is finite, and no such class is ever predicted."""

_ENOUGH = 0.5
"""Of the prior: so much of that logarithm is taken from a logit that no image makes up for it."""


class PriorSettings(Settings):
    """How much of it."""

    prior: float = setting(0.0, "weight of the log class frequencies in training; 0 is off", symbol="tau", ge=0, le=10)
    prior_smoothing: float = setting(
        1.0, "samples that every class counts more; with 0 a site hardly predicts a class it has not seen", ge=0
    )


class LabelPrior(Mechanism):
    """Steps 1 and 2."""

    settings_class = PriorSettings
    name = "label_prior"
    switch = "prior"
    words = (NOT_AT_THE_END, NO_BIAS)
    newcomer = Rule("the common model with its own class frequencies", "as every site uses it")

    def refuses(self, run: Run) -> str | None:
        """Where samples have no single class, no class has a frequency among them."""
        if not run.learned.one_class:
            return f"prior is for tasks in which a sample is of one class; {run.learned.name} is none"
        for name in ("class_weights", "sampling"):
            if run.all_settings[name] == "balanced":
                return f"prior makes up for class frequencies, and {name}=balanced would do so again: leave one"
        return None

    def objective(self, run: Run) -> str:
        """Step 1."""
        return f"with {self.settings.prior:g} log p_site added to the logits"

    def suits(self, model: nn.Module, split: ParameterSplit, x: Tensor) -> None:
        """The network must end in its classifier: what is added to that one's bias is added to the logits."""
        bias = _bias(model, split)
        as_it_is, shift = bias.detach().clone(), torch.arange(len(bias), dtype=bias.dtype, device=bias.device)
        with torch.no_grad():
            before = logits(model(x))
            bias.add_(shift)
            after = logits(model(x))
            bias.copy_(as_it_is)
        if before.shape[1] != len(bias) or not torch.allclose(after, before + shift, atol=1e-3):
            raise UserError(NOT_AT_THE_END(type(model).__name__))

    def loss(self, round_: LocalRound, loss: Loss) -> Loss:
        """Step 1; where the model has the frequencies already, the task's loss as it is."""
        if not isinstance(round_.when, int):
            return loss
        adjustment = self._adjustment(round_)
        return lambda output, labels: loss(output + adjustment, labels)

    def in_use(self, round_: LocalRound) -> State | None:
        """Step 2."""
        state = dict(round_.model.state_dict())
        path, layer = round_.split.classification_layer(round_.model)
        name = f"{path}.bias" if path else "bias"
        state[name] = layer.bias.detach() + self._adjustment(round_)
        return state

    def card(self, data: SiteData, classes: Sequence[str]) -> dict[str, Any]:
        """The classes that the model in use never predicts, where frequencies are not smoothed."""
        if self.settings.prior_smoothing or self.settings.prior < _ENOUGH:
            return {}
        counts = data.class_counts(len(classes)).tolist()
        return {"never_predicted": [name for name, number in zip(classes, counts, strict=True) if not number]}

    def _adjustment(self, round_: LocalRound) -> Tensor:
        bias = _bias(round_.model, round_.split)
        counts = round_.data.class_counts(len(bias)).to(bias)
        return self.settings.prior * log_frequencies(counts, self.settings.prior_smoothing)


def log_frequencies(counts: Tensor, smoothing: float) -> Tensor:
    """log p of eq. p_c = (n_c + s) / (n + s C).

    Args:
        counts: n_c, (C,), of any type; not all 0.
        smoothing: s >= 0.
    """
    smoothed = counts.double() + smoothing
    return (smoothed / smoothed.sum()).clamp(min=_NEVER).log().to(counts.dtype)


def _bias(model: nn.Module, split: ParameterSplit) -> Any:
    _, layer = split.classification_layer(model)
    if layer.bias is None:
        raise UserError(NO_BIAS(type(model).__name__))
    return layer.bias
