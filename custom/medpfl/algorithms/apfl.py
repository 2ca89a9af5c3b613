"""APFL: each site uses a mixture of the common model and of one of its own, in a proportion that it learns.

Deng, Kamani, Mahdavi: Adaptive personalized federated learning. arXiv 2003.13461, 2020, algorithm 1.

1. w, the common model, takes FedAvg's steps on f(w).
2. v, the site's own, begins as the first model and takes steps along d f(alpha v + (1 - alpha) w) / d v, on the same
   batches.
3. Once a round, at its first batch, alpha takes a step along d f / d alpha = <v - w, grad f(alpha v + (1 - alpha) w)>
   (eq. 11), and stays in [0, 1]; as in the authors' code. ``adaptive=0`` leaves it as it is.
4. The site uses alpha v + (1 - alpha) w, with w as it was received.

Of batch norm, statistics are the mixture's own. alpha is reported to the server, as the paper's tables have it. At a
site with a secret order that first batch is the same in every round, so it counts of how many patients it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.core.parameters import State
from medpfl.core.seeding import Order, end_batch, listener
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import SiteData
from medpfl.models import logits
from medpfl.training.loop import Epochs, Loss, batch_norm_for, finite_mean, require_finite
from medpfl.training.memory_format import laid_out
from medpfl.training.part import Outcome, Part
from medpfl.training.steps import Count, Steps, counted

_ALPHA, _FEWEST = "alpha/", "alpha/patients"
"""alpha among the entries of v, and of how many patients the smallest batch was by which it was learned; no module's
entry has a / in its name."""


class APFLSettings(Settings):
    """The mixture."""

    alpha: float = setting(0.0, "share of a site's own model in the mixture at the start", symbol="alpha", ge=0, le=1)
    adaptive: int = setting(1, "1 learns the share at each site", ge=0, le=1)


class AdaptiveMixture(Mechanism):
    """Steps 2 to 4."""

    settings_class = APFLSettings
    name = "mixture"
    switch = "alpha"
    replaces = ("train", "use")
    numbers: ClassVar[Mapping[str, tuple[float, float]]] = {"alpha": (0.0, 1.0)}
    newcomer = Rule(
        "the common model, which it adapts", "that is its mixture with a model that begins as the common one"
    )

    def objective(self, run: Run) -> str:
        """Of the second model."""
        return f"for each site's own model v: {run.learned.loss_name} of alpha v + (1 - alpha) psi"

    def each_round(self) -> str:
        """The second model."""
        return "a second model, as long"

    def begin(self, round_: LocalRound) -> Part:
        """The steps of w and v, batch by batch."""
        kept = dict(round_.kept() or {})
        alpha = float(kept.pop(_ALPHA, self.settings.alpha))
        patients = [int(kept.pop(_FEWEST))] if _FEWEST in kept else []
        own = deepcopy(round_.model)
        if kept:
            own.load_state_dict(kept)
        learned = [alpha]

        def learned_by(samples: Tensor) -> None:
            patients.append(_patients(round_.data, samples))

        def train(work: Epochs) -> float:
            adaptive = bool(self.settings.adaptive)
            loss, learned[0] = train_both(work, own, alpha, round_.loss, adaptive=adaptive, learned_by=learned_by)
            return loss

        def end() -> Outcome:
            state = {name: tensor.detach().clone() for name, tensor in own.state_dict().items()}
            state[_ALPHA] = torch.tensor(learned[0], dtype=torch.float64)
            fewest = min(patients, default=None)
            more = {} if fewest is None else {_FEWEST: torch.tensor(fewest)}
            return Outcome(state | more, numbers={"alpha": learned[0]}, patients=fewest)

        return Part(train=train, end=end)

    def in_use(self, round_: LocalRound) -> State | None:
        """Step 4; what was received, for a site that has trained in no round yet."""
        if (kept := dict(round_.kept() or {})) == {}:
            return None
        alpha = float(kept.pop(_ALPHA))
        kept.pop(_FEWEST, None)
        named = round_.model.named_parameters(remove_duplicate=False)  # tied weights have several names
        parameters = {name: p for name, p in named if p.requires_grad}
        return {
            name: alpha * own.to(round_.device) + (1 - alpha) * parameters[name].detach() if name in parameters else own
            for name, own in kept.items()
        }


def train_both(
    work: Epochs,
    own: nn.Module,
    alpha: float,
    loss_of: Loss,
    *,
    adaptive: bool,
    learned_by: Callable[[Tensor], None] = lambda samples: None,
) -> tuple[float, float]:
    """Epochs of the common model ``work.model`` and of the site's own, side by side.

    Args:
        work: the common model's training.
        own: v, in place.
        alpha: its share in the mixture.
        loss_of: the task's.
        adaptive: alpha takes a step at the first batch.
        learned_by: called with the numbers of that batch's samples.

    Returns:
        The common model's mean loss per sample, and alpha.

    Raises:
        TrainingDiverged: the loss, or weights of either, are not finite.
    """
    common, of_own = work.model.train(), dict(own.train().named_parameters())
    trainer, memory = work.trainer, work.memory
    of_common = Steps(
        trainer, common, list(common.parameters()), work.before_step, work.after_step, memory, listener(work.order)
    )
    of_mixture = Steps(trainer, own, list(own.parameters()), (), (), memory and memory.of(AdaptiveMixture.name))
    total: Count = 0.0
    count: Count = 0
    first = True
    last = trainer.channels_last
    with laid_out(common, channels_last=last), laid_out(own, channels_last=last):
        for _ in range(work.number):
            for x, y in trainer.batches(work.data, work.order):
                kind, samples = (y, work.data.images_per_sample), counted(y)
                with batch_norm_for(common, *kind), batch_norm_for(own, *kind):
                    now = {name: p.detach() for name, p in common.named_parameters()}
                    mixed = {name: alpha * p + (1 - alpha) * now[name] for name, p in of_own.items() if p.requires_grad}
                    for tensor in mixed.values():
                        tensor.retain_grad()
                    with of_mixture.forward():
                        of_mixture_loss = loss_of(logits(functional_call(own, mixed, (x,))), y)
                    of_mixture.backward(of_mixture_loss, samples)
                    if adaptive and first:
                        known = work.order.batch if isinstance(work.order, Order) else None
                        learned_by(torch.arange(len(y)) if known is None else known)
                        ways = {name: p.detach() - now[name] for name, p in of_own.items()}
                        slopes = {name: tensor.grad for name, tensor in mixed.items() if tensor.grad is not None}
                        slope = sum(float((ways[name] * grad).sum()) for name, grad in slopes.items())
                        if slope and isfinite(slope):  # it may overflow, as a scaled loss does, whose step is left out
                            alpha = min(1.0, max(0.0, alpha - trainer.lr * slope / float(of_mixture.scale(samples))))
                    with of_common.forward():
                        loss, minimised = work.objective(x, y)
                    of_common.backward(minimised, samples)
                    end_batch(work.order)
                    of_common.step()
                    of_mixture.step()
                total = total + loss.detach().double() * samples
                count, first = count + samples, False
            of_common.end_epoch()
            of_mixture.end_epoch()
        of_common.end()
        of_mixture.end()
    mean = finite_mean(total, count, trainer)
    require_finite((*common.parameters(), *own.parameters()), trainer)
    return mean, alpha


def _patients(data: SiteData, samples: Tensor) -> int:
    """Of how many patients some training samples are; each is another's where the data know no patients."""
    owners = data.owners("train")
    return len(samples) if owners is None else len(owners[samples.to(owners.device)].unique())


APFL = Algorithm(
    name="apfl",
    title="APFL",
    paper="Deng et al., arXiv:2003.13461",
    summary="each site uses a mixture of the common model and its own, in a proportion that it learns",
    mixing=Samples,
    mechanisms=(AdaptiveMixture,),
    settings={"alpha": 0.5},
)
