"""Each site gets a mix of its own, in which sites weigh more whose models are more alike to its own.

In the way of Huang et al.: Personalized cross-silo federated learning on non-IID data. AAAI 2021 (HeurFedAMP), but
that training begins at the mix u_i, which is also what a site uses, and not at the site's own last model.

1. After a round W_ii is amp_own, and W_ij is in proportion to exp(amp_sharpness * cos(w_i, w_j)) over the others, with
   w_i the shared model that site i's training left.
2. Site i gets u_i = sum_j W_ij w_j and minimises its loss + mu/2 |w - u_i|^2, which is FedProx' term.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn.functional import normalize

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedprox import Proximal
from medpfl.algorithms.mechanism import Rule, Run
from medpfl.algorithms.mixing_kinds import MatrixMixing
from medpfl.core.parameters import State
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, setting


class AttentiveSettings(Settings):
    """How W is made."""

    amp_own: float = setting(0.5, "share of a site's own model in what it gets", gt=0, lt=1)
    amp_sharpness: float = setting(25.0, "how much more sites weigh that are alike", symbol="sigma", ge=0)


class Attentive(MatrixMixing):
    """Step 1."""

    settings_class = AttentiveSettings
    name = "attentive"
    what = "by how alike the sites' models are after each round"
    weighs_sites = True  # so that a hospital's limit on another site's weight holds
    newcomer = Rule("the mean of the sites' models", "it has sent no model")

    def matrix(self, run: Run, state: ServerState, updates: Mapping[str, State]) -> np.ndarray:
        """W of the sites that sent an update; who sent none keeps what it has."""
        there = [i for i, site in enumerate(run.site_names) if site in updates]
        models = torch.stack([flat(updates[run.site_names[i]]) for i in there])
        alike = self.settings.amp_sharpness * (normalize(models) @ normalize(models).T)
        rows = (1 - self.settings.amp_own) * alike.fill_diagonal_(-torch.inf).softmax(1).numpy()
        weights = np.zeros((run.sites, run.sites))
        weights[np.ix_(there, there)] = rows + self.settings.amp_own * np.eye(len(there))
        return weights


def flat(state: State) -> torch.Tensor:
    """All numbers of a state in a row, (P,) float64."""
    return torch.cat([tensor.flatten().double() for tensor in state.values() if tensor.is_floating_point()])


FEDAMP = Algorithm(
    name="fedamp",
    title="FedAMP",
    paper="after Huang et al., AAAI 2021",
    summary="each site gets a mix in which sites weigh more whose models are alike, and is held near it",
    mixing=Attentive,
    mechanisms=(Proximal,),
    settings={"mu": 0.1},
)
