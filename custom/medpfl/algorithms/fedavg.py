"""FedAvg: one model for all sites, the average of theirs weighted by training samples.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-efficient learning of deep networks from decentralized
data. AISTATS 2017.
"""

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mixing import Samples

FEDAVG = Algorithm(
    name="fedavg",
    title="FedAvg",
    paper="McMahan et al., AISTATS 2017",
    summary="one model for all, averaged by training samples",
    mixing=Samples,
)
