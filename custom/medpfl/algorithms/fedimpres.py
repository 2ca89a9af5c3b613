"""FedImpres: the server distils its model into a few synthetic images, and every site trains with them too.

Federated Impression for Learning with Distributed Heterogeneous Data, 2024.

1. After ``warmup`` rounds of FedAvg, and then after every round, the server makes a federated impression: ``images``
   images that start from noise, from public images or from an unlabelled medical set (``start``), bear the server
   model's own predictions as labels, and are moved by ADMM (:mod:`medpfl.server.impression`, eqs. 2 to 4).
2. A site minimises CE(local) + beta CE(impression) (eq. 5), as two terms of one pass
   (:mod:`medpfl.site.objectives`), so that they do not forget what the server's model knows.

``constraint=0`` is the paper's ablation (cross-entropy alone); ``admm_iterations=0`` our control: the start images with
their pseudo-labels.
"""

from medpfl.algorithms.base import Algorithm

FEDIMPRES = Algorithm(
    name="fedimpres",
    title="FedImpres",
    paper="Federated Impression, 2024",
    summary="the server synthesises images from its model, sites train on them too",
    personal="nothing",
    mixing="samples",
    settings={
        "beta": 1.0,
        "warmup": 15,
        "images": 160,
        "start": "noise",
        "admm_iterations": 5,
        "inner_steps": 10,
        "pixel_lr": 0.1,
        "rho": 0.2,
        "gamma": 0.01,
        "constraint": 1,
    },
    schedule={"model": "impression-cnn", "rounds": 80, "local_epochs": 5},
    training={"batch_size": 16},
)
