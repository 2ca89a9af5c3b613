"""LG-FedAvg: the bottom (representation) layers stay at the site, the top layers are averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think locally, act globally: federated learning with
local and global representations. arXiv 2001.01523, 2020. ``layers`` counts the shared layers at the top, so that
LG-FedAvg and FedPer with the same number are each other's complement.
"""

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mixing import Samples

LG_FEDAVG = Algorithm(
    name="lg-fedavg",
    title="LG-FedAvg",
    paper="Liang et al., arXiv:2001.01523",
    summary="only the top `layers` layers are averaged, the representation stays at the sites",
    personal="below-top:{layers}",
    mixing=Samples,
    settings={"layers": 1},
)
