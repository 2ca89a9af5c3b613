"""FedBN: FedAvg in which all state of every batch-norm layer stays at the site.

Li, Jiang, Zhang, Kamp, Dou: FedBN: federated learning on non-IID features via local batch normalization. ICLR 2021.
"""

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mixing import Samples

FEDBN = Algorithm(
    name="fedbn",
    title="FedBN",
    paper="Li et al., ICLR 2021",
    summary="FedAvg with batch-norm layers kept at the sites",
    personal="batch-norm",
    mixing=Samples,
)
