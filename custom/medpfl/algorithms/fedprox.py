"""FedProx: FedAvg whose sites also minimise (mu/2) |psi - psi_received|^2, which keeps them near the common model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Run
from medpfl.algorithms.mixing import Samples
from medpfl.core.parameters import ParameterSplit
from medpfl.core.settings import Settings, setting
from medpfl.training.part import Part


class ProximalSettings(Settings):
    """Its strength."""

    mu: float = setting(0.0, "weight of the penalty on moving away from the received parameters", ge=0)


class Proximal(Mechanism):
    """The penalty on moving away from what was received; over the shared parameters alone."""

    settings_class = ProximalSettings
    name = "proximal"
    switch = "mu"
    listed = True

    @classmethod
    def applies(cls, personal: str) -> bool:
        """Asked for in vain it is refused in words, with everything personal too."""
        return True

    def refuses(self, run: Run) -> str | None:
        """Nothing is received."""
        if run.resolved_personal == "everything":
            return "mu penalises moving away from received parameters; with everything personal none come"
        return None

    def objective(self, run: Run) -> str:
        """The paper's equation 2."""
        return f"{run.all_settings['mu']}/2 |psi - psi_received|^2"

    def begin(self, round_: LocalRound) -> Part:
        """The term, with what the round begins with as what was received."""
        received = round_.split.shared_state(round_.model)
        return Part(term=partial(proximal_term, round_.split, round_.model, received, self.settings.mu))

    def adapts(self, round_: LocalRound) -> Part:
        """A site that joins stays near what it received, too."""
        return self.begin(round_)


def proximal_term(split: ParameterSplit, model: nn.Module, received: Mapping[str, Tensor], mu: float) -> Tensor:
    """FedProx's penalty (mu/2) |psi - psi_received|^2 over the shared parameters (Li et al. 2020, eq. 2).

    Args:
        split: what is shared.
        model: in training.
        received: the shared state that the round began with, on the model's device.
        mu: strength, >= 0.

    Returns:
        A scalar, differentiable with respect to the model's shared parameters only.
    """
    squares = [(w - received[name]).square().sum() for name, w in split.shared_views(model).items()]
    return mu / 2 * torch.stack(squares).sum()


FEDPROX = Algorithm(
    name="fedprox",
    title="FedProx",
    paper="Li et al., MLSys 2020",
    summary="FedAvg with a penalty on moving away from the received model",
    mixing=Samples,
    mechanisms=(Proximal,),
    settings={"mu": 0.01},
)
