"""FedVSS: virtual samples of each batch, some harder for the site's model and some easier for the common one.

Zhu, Luo: Federated medical image analysis with virtual sample synthesis. MICCAI 2022.

Of each batch (x, y) the site makes two others, by signed steps on the pixels within epsilon of x: x_l, on which its
model as it is has a higher loss (adversarial), and x_g, on which the model that it received has a lower one
(confident). It minimises CE(x, y) + a CE(x_l, y) + b CE(x_g, y).

Neither the paper's text nor its authors' code was at hand: only its abstract, from which the two kinds of samples are,
and the start of its public reviews, which say that it makes samples by virtual adversarial training. Steps, epsilon =
0.05, the step of 0.025, their number, a = 0.1 and b = 1 are those of the code that FedImpres' authors have under this
name, for their Retina data (Atrin78/FedImpress, train_handler.py). It follows labels where virtual adversarial training
follows predictions, and its pixels are divided by their spread; here they lie in [-1, 1]. Decided here: models are in
eval mode where samples are made, so that these leave running statistics alone, and all three batches go through the
model in one pass, in which batch norm sees them together; in that code they go one by one. Nothing but FedAvg's
travels, and virtual samples never leave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.func import functional_call

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.algorithms.signed_steps import fixed, moved
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import Batch
from medpfl.models import logits
from medpfl.training.part import Beside, Part


class VirtualSamplesSettings(Settings):
    """How much virtual samples weigh, and how far from real ones they lie."""

    adversarial: float = setting(0.0, "weight of samples that are made harder for the site's own model", ge=0)
    confident: float = setting(0.0, "weight of samples that are made easier for the received model", ge=0)
    radius: float = setting(0.05, "how far a pixel may move; images lie in [-1, 1]", symbol="epsilon", gt=0)
    radius_step: float = setting(0.025, "how far it moves in a step", gt=0)
    radius_steps: int = setting(5, "steps", gt=0, le=100)


class VirtualSamples(Mechanism):
    """Both kinds, beside each batch."""

    settings_class = VirtualSamplesSettings
    name = "virtual_samples"
    switch = "adversarial"
    also = ("confident",)
    newcomer = Rule("the same, with what it received as the common model", "both kinds are made from its own samples")

    def refuses(self, run: Run) -> str | None:
        """A virtual sample bears the label of the one that it is made of."""
        if not run.learned.one_class:
            return f"virtual samples follow the label of one class a sample; {run.learned.name} has other labels"
        return None

    def objective(self, run: Run) -> str:
        """Both terms."""
        values = run.all_settings
        return (
            f"{values['adversarial']} cross-entropy of samples made harder for the site's model, {values['confident']} "
            "of samples made easier for the received one"
        )

    def begin(self, round_: LocalRound) -> Part:
        """Samples of both kinds beside each batch."""
        model, received = round_.model, fixed(round_.model)
        how = self.settings

        def present(x: Tensor) -> Tensor:
            # The copy's modules are in eval mode; the values are the model's own.
            state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
            return logits(functional_call(received, state, (x,)))

        def common(x: Tensor) -> Tensor:
            return logits(received(x))

        def made(scores: Callable[[Tensor], Tensor], size: float, x: Tensor, y: Tensor) -> Batch:
            return moved(scores, x, y, round_.loss, size, how.radius_steps, how.radius), y

        harder = Beside(partial(made, present, how.radius_step), how.adversarial, own=True)
        easier = Beside(partial(made, common, -how.radius_step), how.confident, own=True)
        return Part(beside=[each for each in (harder, easier) if each.weight])

    def adapts(self, round_: LocalRound) -> Part:
        """A site that joins, likewise."""
        return self.begin(round_)


FEDVSS = Algorithm(
    name="fedvss",
    title="FedVSS",
    paper="Zhu, Luo, MICCAI 2022",
    summary="sites also train on virtual samples: harder ones for their own model, easier ones for the common one",
    mixing=Samples,
    mechanisms=(VirtualSamples,),
    settings={"adversarial": 0.1, "confident": 1.0},
)
