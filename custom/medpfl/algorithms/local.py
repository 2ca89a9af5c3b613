"""Local training: every site trains alone. The rival that every federated method has to beat."""

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mixing import Identity

LOCAL = Algorithm(
    name="local",
    title="Local",
    paper="-",
    summary="every site trains alone, nothing is sent",
    personal="everything",
    mixing=Identity,
)
