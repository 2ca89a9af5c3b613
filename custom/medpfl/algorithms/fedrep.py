"""FedRep: the head is the site's own; in each round it is trained first, and then the body for what is shared.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting shared representations for personalized federated learning. ICML
2021, algorithm 1: ``head_epochs`` epochs of the head with the body as it came, then the run's local epochs of the body
with the head as it is. FedPer has the same parts and trains them together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.core.errors import UserError
from medpfl.core.numbers_in_words import count
from medpfl.core.parameters import ParameterSplit
from medpfl.core.reasons import Reason
from medpfl.core.settings import Settings, setting
from medpfl.models.outputs import logits
from medpfl.training.loop import Epochs, only_these
from medpfl.training.part import Part

NOT_REACHED = Reason(
    "head_epochs trains the personal part by itself, and the output does not come through it: name the layers that "
    "classify, --personal modules:PATH"
)


class FedRepSettings(Settings):
    """How long the head is trained."""

    head_epochs: int = setting(
        0, "epochs of the personal part before the shared one is trained", symbol="tau", ge=0, le=10**4
    )


class HeadFirst(Mechanism):
    """What is personal is trained before what is shared, each with the other as it is."""

    settings_class = FedRepSettings
    name = "head_first"
    switch = "head_epochs"
    replaces = ("train",)
    words = (NOT_REACHED,)
    newcomer = Rule("the common body, and a head that it trains alone", "the body holds what the sites have in common")

    def refuses(self, run: Run) -> str | None:
        """Nothing is personal, or parameters are both."""
        if run.resolved_personal == "nothing":
            return "head_epochs trains the personal part first, and nothing is personal: give --personal, e.g. top:1"
        if "heads:" in run.resolved_personal:
            return "head_epochs trains whole parameters, and with heads:P parts of some are personal"
        return None

    def suits(self, model: nn.Module, split: ParameterSplit, x: Tensor) -> None:
        """The head is not frozen as a whole, nor without a part in the output; the body is not, which no run has."""
        head = {name: p for name, p in model.named_parameters() if name not in set(split.shared_names)}
        if not any(p.requires_grad for p in head.values()):
            raise UserError("head_epochs trains the personal part by itself, and all of it is frozen: freeze less")
        with torch.enable_grad(), only_these(model, list(head.values())):
            reached = logits(model(x)).requires_grad
        if not reached:
            raise UserError(NOT_REACHED())

    def objective(self, run: Run) -> str:
        """The order of training."""
        return f"{self.settings.head_epochs} epochs of the personal part, then the shared one"

    def each_round(self) -> str:
        """The head's epochs."""
        epochs = self.settings.head_epochs
        return f"{count(epochs, 'epoch')} of the personal part"

    def begin(self, round_: LocalRound) -> Part:
        """The head, then the body."""
        head, body = divided(round_)

        def train(work: Epochs) -> float:
            work.run(self.settings.head_epochs, head)
            return work.run(parameters=body)

        return Part(train=train)

    def adapts(self, round_: LocalRound) -> Part:
        """The head alone."""
        head, _ = divided(round_)
        return Part(train=lambda work: work.run(parameters=head))


def divided(round_: LocalRound) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that are personal, and those that are shared."""
    shared = set(round_.split.shared_names)
    parameters = dict(round_.model.named_parameters())
    return [p for n, p in parameters.items() if n not in shared], [p for n, p in parameters.items() if n in shared]


FEDREP = Algorithm(
    name="fedrep",
    title="FedRep",
    paper="Collins et al., ICML 2021",
    summary="as FedPer, but the head is trained first, then the body",
    personal="top:{layers}",
    mixing=Samples,
    mechanisms=(HeadFirst,),
    settings={"layers": 1, "head_epochs": 10},
)
