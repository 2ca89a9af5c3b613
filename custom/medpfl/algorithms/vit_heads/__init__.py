"""ViT heads: some attention heads of a vision transformer stay at the site, and both kinds of heads learn to agree.

Shen, Liu, Yu, Wang, Wang, Wu, Chen: Federated learning for chronic obstructive pulmonary disease classification with
partial personalized attention mechanism. IEEE Journal of Biomedical and Health Informatics, 2023.

1. In every layer the first P of K heads are personal: the rows of the q, k and v projections that make them and the
   columns of the output projection that read them (:class:`medpfl.core.declarations.Heads`, eqs. 3 and 4). P is pK
   rounded half up, at least 1 and at most K - 1 for 0 < p < 1. With p = 0 this is FedAvg.
2. A site minimises cross-entropy + lambda [KL(g || l) + KL(l || g)], where g and l are the softened predictions of the
   sub-networks of the shared and of the personal heads (:mod:`medpfl.algorithms.vit_heads.consistency`, eqs. 5 and 6).
3. The server averages what is shared, by numbers of samples; only the shared slices travel.

The setting ``consistency`` is the paper's lambda, and ``lambda`` is accepted for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Run
from medpfl.algorithms.mixing import Samples
from medpfl.algorithms.vit_heads.consistency import consistency_term, sub_network_logits
from medpfl.core.settings import Settings, setting
from medpfl.training.part import Part


class ConsistencySettings(Settings):
    """How much the two kinds of heads have to agree."""

    consistency: float = setting(0.0, "weight of the agreement of shared and personal heads", symbol="lambda", ge=0)
    temperature: float = setting(4.0, "T, by which logits are divided before they are compared", symbol="T", gt=0)


class Consistency(Mechanism):
    """Step 2: the sub-networks of both kinds of heads learn to agree, where there are both."""

    settings_class = ConsistencySettings
    name = "consistency"
    switch = "consistency"
    replaces = ("forward",)
    listed = True

    @classmethod
    def applies(cls, personal: str) -> bool:
        """Where heads are personal."""
        return "heads:" in personal

    def objective(self, run: Run) -> str:
        """The paper's equation 6; with one kind of heads there is nothing to agree on."""
        if run.all_settings.get("p") in (0, 1):
            return ""
        weight, temperature = run.all_settings["consistency"], run.all_settings["temperature"]
        return f"{weight} consistency of shared and personal heads, T = {temperature}"

    def begin(self, round_: LocalRound) -> Part | None:
        """One forward pass for the model and both sub-networks."""
        if not round_.split.heads_divided:
            return None
        three = sub_network_logits(round_.model, round_.split.heads)
        return Part(forward=partial(_consistent, three, self.settings.consistency, self.settings.temperature))

    def adapts(self, round_: LocalRound) -> Part | None:
        """A site that joins has personal heads, too."""
        return self.begin(round_)


def _consistent(three_logits: Any, weight: float, temperature: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Shen et al., eq. 6."""
    whole, shared, personal = three_logits(x)
    return whole, weight * consistency_term(shared, personal, temperature)


VIT_HEADS = Algorithm(
    name="vit-heads",
    title="ViT heads",
    paper="Shen et al., IEEE JBHI 2023",
    summary="a share p of a vision transformer's attention heads stays at the sites",
    personal="heads:{p}",
    mixing=Samples,
    mechanisms=(Consistency,),
    settings={"p": 0.6, "consistency": 1.0, "temperature": 4.0},
    schedule={"model": "vit-tiny", "rounds": 50, "local_epochs": 3},
    training={"momentum": 0.9, "nesterov": 1, "weight_decay": 5e-4},
)
