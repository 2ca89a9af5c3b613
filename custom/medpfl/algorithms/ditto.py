"""Ditto: beside its copy of the common model each site trains a model of its own, held near the common one.

Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization. ICML 2021, algorithm 1.

1. The common model is FedAvg's (or any other method's whose mechanisms a run has).
2. In each round the site also trains v, which never leaves and begins as the first model (at a site that was away in
   round 1: as what it first got). It minimises F(v) + (lambda / 2) |v - w|^2, w being what the round brought.
3. v is what the site uses.

The setting ``ditto`` is the paper's lambda. The authors choose it per data set between 0.05 and 2; the default is 1.
Where parts are personal already (batch norm, say), v has its own, and the penalty is on what is shared.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial

from torch import nn

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedprox import proximal_term
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.core.parameters import State
from medpfl.core.seeding import seed_global
from medpfl.core.settings import Settings, setting
from medpfl.training.loop import train_epochs
from medpfl.training.objective import objective_of
from medpfl.training.part import Outcome, Part


class DittoSettings(Settings):
    """How near the own model stays."""

    ditto: float = setting(0.0, "weight that holds a site's own model near the received one", symbol="lambda", ge=0)


class OwnModel(Mechanism):
    """Steps 2 and 3."""

    settings_class = DittoSettings
    name = "ditto"
    switch = "ditto"
    replaces = ("use",)
    newcomer = Rule("the common model, adapted under the same penalty", "as a site's own model is trained")

    def objective(self, run: Run) -> str:
        """Of the second model."""
        return f"for each site's own model v: {run.all_settings['ditto']}/2 |v - psi_received|^2"

    def each_round(self) -> str:
        """The second model."""
        return "a second model, as long"

    def begin(self, round_: LocalRound) -> Part:
        """Keeps what the round brought, for v is trained against it once the common model is trained."""
        received, own = round_.split.shared_state(round_.model), deepcopy(round_.model)
        if (kept := round_.kept()) is not None:
            own.load_state_dict(kept)

        def end() -> Outcome:
            order = round_.order("ditto")
            seed_global(order.initial_seed())
            objective = objective_of(own, [self._near(round_, own, received)], round_.loss)
            memory = round_.memory and round_.memory.of(self.name)
            epochs = round_.run.local_epochs
            train_epochs(own, round_.data, round_.trainer, epochs, order, objective, memory=memory)
            return Outcome(state={name: tensor.detach().clone() for name, tensor in own.state_dict().items()})

        return Part(end=end)

    def adapts(self, round_: LocalRound) -> Part:
        """A newcomer's own model begins as what it received."""
        return self._near(round_, round_.model, round_.split.shared_state(round_.model))

    def in_use(self, round_: LocalRound) -> State | None:
        """Step 3; what was received, for a site that has trained in no round yet."""
        return round_.kept()

    def _near(self, round_: LocalRound, model: nn.Module, received: State) -> Part:
        return Part(term=partial(proximal_term, round_.split, model, received, self.settings.ditto))


DITTO = Algorithm(
    name="ditto",
    title="Ditto",
    paper="Li et al., ICML 2021",
    summary="FedAvg, and at each site a model of its own that is held near the common one",
    mixing=Samples,
    mechanisms=(OwnModel,),
    settings={"ditto": 1.0},
)
