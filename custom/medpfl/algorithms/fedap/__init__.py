"""FedAP and its variants: batch norm stays at the site, and the server mixes by the similarity of the sites' data.

Lu, Wang, Chen, Qin, Xu, Dimitriadis, Qin: Personalized federated learning with adaptive batchnorm for healthcare. IEEE
Transactions on Big Data, 2022. FedHealth 2 (Chen, Lu, Wang, Qin, Qin, 2021) is the same algorithm under its first name.

1. A pretrained model f goes to every site (:mod:`medpfl.algorithms.fedap.pretraining`).
2. Each site takes mean and variance of the input of f's layers over its training data, exactly
   (:func:`medpfl.core.moments.input_statistics`), and sends them once.
3. The server turns them into the mixing matrix W (:mod:`medpfl.algorithms.fedap.similarity`, eqs. 4-8).
4. Each round the sites train and send psi; site i receives sum_j W_ij psi_j (:func:`medpfl.core.mixing.mix`, eq. 2).
   phi, the batch-norm state, never leaves (:class:`medpfl.core.declarations.BatchNorm`).

d-FedAP looks at the input of the classification layer only. f-FedAP needs no f: it runs FedBN for the first half of the
rounds, then the sites' own running batch-norm statistics take the place of step 2.
"""

from __future__ import annotations

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedap.mixings import Similarity, SimilarityClassifier, SimilarityRunning

_PAPER = "Lu et al., IEEE Trans. Big Data 2022; at first {}FedHealth 2, Chen et al. 2021"

FEDAP = Algorithm(
    name="fedap",
    title="FedAP",
    paper=_PAPER.format(""),
    summary="batch norm stays; mixing by similarity of all batch-norm inputs under a pretrained model",
    personal="batch-norm",
    mixing=Similarity,
)

D_FEDAP = Algorithm(
    name="d-fedap",
    title="d-FedAP",
    paper=_PAPER.format("d-"),
    summary="FedAP with the similarity of the classification layer's input only",
    personal="batch-norm",
    mixing=SimilarityClassifier,
)

F_FEDAP = Algorithm(
    name="f-fedap",
    title="f-FedAP",
    paper=_PAPER.format("f-"),
    summary="FedAP without a pretrained model: FedBN first, then similarity of running statistics",
    personal="batch-norm",
    mixing=SimilarityRunning,
)
