"""FedPer: the top (classification) layers stay at the site, the representation below them is averaged.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated learning with personalization layers. arXiv 1912.00818, 2019.
"""

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mixing import Samples

FEDPER = Algorithm(
    name="fedper",
    title="FedPer",
    paper="Arivazhagan et al., arXiv:1912.00818",
    summary="the top `layers` layers stay at the sites, the rest is averaged",
    personal="top:{layers}",
    mixing=Samples,
    settings={"layers": 1},
)
