"""ViT heads: some attention heads of a vision transformer stay at the site, and both kinds of heads learn to agree.

Shen, Liu, Yu, Wang, Wang, Wu, Chen: Federated learning for chronic obstructive pulmonary disease classification with
partial personalized attention mechanism. IEEE Journal of Biomedical and Health Informatics, 2023.

1. In every layer the first P of K heads are personal: the rows of the q, k and v projections that make them and the
   columns of the output projection that read them (:class:`medpfl.declarations.Heads`, eqs. 3 and 4). P is pK rounded
   half up, at least 1 and at most K - 1 for 0 < p < 1. With p = 0 this is FedAvg.
2. A site minimises cross-entropy + lambda [KL(g || l) + KL(l || g)], where g and l are the softened predictions of the
   sub-networks of the shared and of the personal heads (:mod:`medpfl.site.consistency`, eqs. 5 and 6).
3. The server averages what is shared, by numbers of samples; only the shared slices travel.

The setting ``consistency`` is the paper's lambda, and ``lambda`` is accepted for it.
"""

from medpfl.algorithms.base import Algorithm

VIT_HEADS = Algorithm(
    name="vit-heads",
    title="ViT heads",
    paper="Shen et al., IEEE JBHI 2023",
    summary="a share p of a vision transformer's attention heads stays at the sites",
    personal="heads:{p}",
    mixing="samples",
    settings={"p": 0.6, "consistency": 1.0, "temperature": 4.0},
    schedule={"model": "vit-tiny", "rounds": 50, "local_epochs": 3},
    training={"momentum": 0.9, "nesterov": 1, "weight_decay": 5e-4},
)
