"""FedProx: FedAvg whose sites also minimise (mu/2) |psi - psi_received|^2, which keeps them near the common model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. MLSys 2020.
The penalty is a site's objective, :func:`medpfl.site.objectives.proximal_term`, and goes with any other choice.
"""

from medpfl.algorithms.base import Algorithm

FEDPROX = Algorithm(
    name="fedprox",
    title="FedProx",
    paper="Li et al., MLSys 2020",
    summary="FedAvg with a penalty on moving away from the received model",
    personal="nothing",
    mixing="samples",
    settings={"mu": 0.01},
)
