"""FedReg: what a local step adds to the loss of pseudo data, which stand for what the others know, is taken back.

Xu, Hong, Huang, Jiang: Acceleration of federated learning with alleviated forgetting in local training. ICLR 2022.

With theta_0 as the round brought it and f its network, a site makes of its training samples (x, y), once a round,
pseudo data (x_s, f(x_s)) and perturbed data (x_p, y): x_s and x_p are x after 10 signed steps up the gradient of f's
loss, of size eta_s and eta_p. Then in each step, with beta = 1/2:

1. theta <- theta - lr grad L(gamma theta + (1 - gamma) theta_0; x, y);
2. g_s = grad L(beta theta + (1 - beta) theta_0; x_s, f(x_s)), w_s = max(0, <theta - theta_0, g_s> / |g_s|^2);
3. g_p likewise of (x_p, y), w_p = max(0, <theta - theta_0 - w_s g_s, g_p> / |g_p|^2);
4. theta <- theta - w_s g_s - w_p g_p: to first order neither loss is above theta_0's.

The whole text of the paper was not at hand; the steps are those of the authors' public code (Zoesgithub/FedReg,
fedreg.py), from which 10, beta and the step sizes' ratio of 100 are too: it has no value for all data. The default is
that of its colour images, gamma 1/2, eta_s 0.1. Its option that hides pseudo data's gradient in the update is left out.

Decided here: 1 is a step of the run's optimizer. The code's clamping of pixels has no effect, and there is none here.
Pseudo data are of every training sample once, augmented as in training, and taken in one order, over and over. Batch
norm, for which the authors did not make it: f is in eval mode; in 1 statistics are of the site's own batch, as always,
and in 2 and 3 a batch has its own, which leave the running ones alone. All that a site trains is meant, also if
personal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.algorithms.signed_steps import fixed, moved
from medpfl.core import scratch
from medpfl.core.parameters import State
from medpfl.core.seeding import trained_on_too
from medpfl.core.settings import Settings, setting
from medpfl.models import logits
from medpfl.training.loop import Loss, batch_norm_for
from medpfl.training.part import Part

_STEPS = 10
_BETA = 0.5
_SMALLEST = 1e-30
"""For a squared norm of 0, as in the authors' code."""
Sample = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Of a batch: pseudo inputs, f's probabilities of them, perturbed inputs, labels, which training samples they are."""


class PseudoSettings(Settings):
    """How far pseudo data lie, and where local gradients are taken."""

    pseudo: int = setting(
        0, "1 takes back what a step adds to the loss of pseudo data, made from the site's own", ge=0, le=1
    )
    # The paper's gamma; FedImpres' is a setting of that name, and may be given beside it.
    slow: float = setting(
        0.5, "where local gradients are taken: 0 at the received weights, 1 at the present", ge=0, le=1
    )
    pseudo_size: float = setting(0.1, "step to pseudo data, in units of the input", symbol="eta_s", gt=0)
    perturbed_size: float = setting(0.001, "step to perturbed data, likewise", symbol="eta_p", gt=0)


class PseudoData(Mechanism):
    """The steps above."""

    settings_class = PseudoSettings
    name = "pseudo"
    switch = "pseudo"
    replaces = ("forward",)
    resists_forgetting = True
    newcomer = Rule("the same, with what it received as theta_0", "it should not forget what the others know, either")

    def refuses(self, run: Run) -> str | None:
        """Pseudo data bear one distribution over classes each; what moves between steps is no gradient."""
        if run.all_settings.get("control"):
            return "control variates take (x - y) / (K lr) for a mean gradient; pseudo moves weights after each step"
        if not run.learned.one_class:
            return f"pseudo data bear probabilities of one class each; {run.learned.name} has other labels"
        return None

    def objective(self, run: Run) -> str:
        """In words: it is no term."""
        where = f"gradients at {run.all_settings['slow']} of the way from received to present weights"
        return f"{where}; what a step adds to the loss of pseudo and perturbed data is taken back"

    def begin(self, round_: LocalRound) -> Part:
        """Pseudo data, and all four steps."""
        model = round_.model
        received = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        made = cycle(pseudo_data(round_, self.settings.pseudo_size, self.settings.perturbed_size))

        def moving() -> dict[str, nn.Parameter]:
            return {name: p for name, p in model.named_parameters() if name in received and p.requires_grad}

        def forward(x: Tensor) -> tuple[Tensor, float]:
            # The value lies on the way; the gradient is that with respect to it, not to its end.
            way = {name: p + ((self.settings.slow - 1) * (p - received[name])).detach() for name, p in moving().items()}
            return logits(functional_call(model, way, (x,))), 0.0

        def take_back() -> None:
            *tensors, whose = next(made)
            x_s, known, x_p, y = (tensor.to(round_.device) for tensor in tensors)
            own = trained_on_too(round_.training, whose, "take back")
            with batch_norm_for(model, y, round_.data.images_per_sample), own:
                project(model, moving(), received, [(x_s, known, cross_entropy), (x_p, y, round_.loss)])

        return Part(forward=forward, after_step=take_back)

    def adapts(self, round_: LocalRound) -> Part:
        """A site that joins, likewise."""
        return self.begin(round_)


def pseudo_data(round_: LocalRound, pseudo_size: float, perturbed_size: float) -> Sequence[Sample]:
    """Batches of pseudo and perturbed data of each training sample, by the model that the round brought.

    A large set lies in a file (:func:`medpfl.core.scratch.allocate`).
    """
    model, loss, total = fixed(round_.model), round_.loss, round_.data.samples("train")

    def scores(x: Tensor) -> Tensor:
        return logits(model(x))

    found: list[Sample] = []
    order = round_.order("pseudo")
    room, first = None, 0
    for x, y in round_.trainer.with_each_once().batches(round_.data, order):
        room = scratch.allocate((2, total, *x.shape[1:]), x.dtype) if room is None else room
        rows = slice(first, first + len(y))
        for kept, size in zip(room, (pseudo_size, perturbed_size), strict=True):
            kept[rows] = moved(scores, x, y, loss, size, _STEPS)
        with torch.no_grad():
            known = scores(room[0, rows].to(x.device)).softmax(1)
        found.append((room[0, rows], known, room[1, rows], y, order.batch))
        first += len(y)
    return found


def project(
    model: nn.Module,
    moving: Mapping[str, nn.Parameter],
    received: State,
    data: Sequence[tuple[Tensor, Tensor, Loss]],
) -> None:
    """Steps 2 to 4, in place: what the way from ``received`` adds to the loss of each of the data is taken back.

    Args:
        model: in training; its buffers stay as they are.
        moving: its parameters that are trained.
        received: theta_0.
        data: inputs, labels or probabilities, and their loss.
    """
    way = {name: p.detach() - received[name] for name, p in moving.items()}
    between = {name: (received[name] + _BETA * step).requires_grad_(True) for name, step in way.items()}
    for x, y, loss in data:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        found = loss(logits(functional_call(model, {**between, **buffers}, (x,))), y)
        gradients = torch.autograd.grad(found, list(between.values()), materialize_grads=True)
        slopes = dict(zip(between, gradients, strict=True))
        weight = (_dot(way, slopes) / _dot(slopes, slopes).clamp(min=_SMALLEST)).clamp(min=0)
        way = {name: step - weight * slopes[name] for name, step in way.items()}
    with torch.no_grad():
        for name, p in moving.items():
            p.copy_(received[name] + way[name])


def _dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


FEDREG = Algorithm(
    name="fedreg",
    title="FedReg",
    paper="Xu et al., ICLR 2022",
    summary="what a local step adds to the loss of pseudo data, made by signed steps from a site's own, is taken back",
    mixing=Samples,
    mechanisms=(PseudoData,),
    settings={"pseudo": 1},
)
