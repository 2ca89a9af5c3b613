"""FedBlend: this package's own composition, in which a site ends with its own model and the federation's together.

1. Sites share all but batch norm, averaged by numbers of samples (FedBN); a network without any is shared whole
   (FedAvg). Where they train by SGD they do so with momentum, and what is common moves with momentum along their mean
   step (FedAvgM, :mod:`medpfl.algorithms.fedopt`).
2. At the end each takes 200 steps more on its own data (:mod:`medpfl.algorithms.fine_tuning`): as many where
   images are few as where they are many.
3. Beside it, each has trained alone in the same rounds, by the same settings. It uses (1 - w) p_alone + w p_federated,
   where the federated network has weights between those before and after step 2, and the validation cases speak for how
   far it goes and for the weight w (:mod:`medpfl.site.choice`).

Why so: a model trained alone with momentum is what a site can have without any federation, and one without is soon
beaten; momentum at the server takes the federated network farther in the same rounds, at no cost to the sites (with
Adam, where it was looked at on two data sets, it helped on one alone); two networks that were trained apart err apart;
w is near 0 where the federation does not help; and a model that was trained on few cases of its own is best taken back
half of the way. What was chosen on which data, and what it gives on others, is in the benchmarks.
"""

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedopt import ServerOptimizer
from medpfl.algorithms.fine_tuning import FineTuning
from medpfl.algorithms.mixing import Samples

FEDBLEND = Algorithm(
    name="fedblend",
    title="FedBlend",
    paper="medpfl",
    summary="FedBN with momentum, fine-tuned, and blended with the model that each site trained alone",
    personal="any-batch-norm",
    mixing=Samples,
    mechanisms=(ServerOptimizer, FineTuning),
    settings={"finetune_steps": 200},
    under_sgd={"server_lr": 1.0, "momentum": 0.9},
    use="blend",
)
