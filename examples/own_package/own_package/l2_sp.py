"""L2-SP: FedAvg whose sites are held near the point that training began at, not near the last round's as in FedProx.

Li, Grandvalet, Davoine: Explicit inductive bias for transfer learning with convolutional networks. ICML 2018, eq. 2.
"""

from __future__ import annotations

from functools import partial

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedprox import proximal_term
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.core.settings import Settings, setting
from medpfl.training.part import Outcome, Part


class StartingPointSettings(Settings):
    """Its strength."""

    anchor: float = setting(0.0, "weight of the penalty on moving away from the first model", ge=0)


class StartingPoint(Mechanism):
    """The penalty (anchor/2) |psi - psi_first|^2, psi_first being what the site's first round brought."""

    settings_class = StartingPointSettings
    name = "starting-point"
    switch = "anchor"
    newcomer = Rule("the common model, adapted near it", "that is where its training begins")

    def objective(self, run: Run) -> str:
        """Equation 2, in words."""
        return f"{self.settings.anchor:g}/2 |psi - psi_first|^2"

    def begin(self, round_: LocalRound) -> Part:
        """The term; the site keeps the first model from round to round, and over a restart."""
        first = round_.kept() or round_.split.shared_state(round_.model)
        term = partial(proximal_term, round_.split, round_.model, first, self.settings.anchor)
        return Part(term=term, end=lambda: Outcome(state=first))

    def adapts(self, round_: LocalRound) -> Part:
        """A site that joins begins at what it receives."""
        return Part(term=self.begin(round_).term)


L2_SP = Algorithm(
    name="l2-sp",
    title="L2-SP",
    paper="Li et al., ICML 2018",
    summary="FedAvg with a penalty on moving away from the first model",
    mixing=Samples,
    mechanisms=(StartingPoint,),
    settings={"anchor": 0.1},
)
