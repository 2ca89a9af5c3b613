"""FedOpt: the sites' mean step is a gradient, along which an optimizer at the server moves the common model.

Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual classification.
arXiv:1909.06335 (FedAvgM). Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive federated
optimization. ICLR 2021, algorithm 2 (FedAdagrad, FedYogi, FedAdam).

1. Rounds and the mix are FedAvg's; d is the mix less the common model before the round.
2. FedAvgM: m <- b1 m + d, and x <- x + lr m. With lr 1 and b1 0 that is FedAvg.
3. The others: m <- b1 m + (1 - b1) d; v by d^2 (:func:`second_moment`), from tau^2 on; x <- x + lr m / (sqrt(v) + tau).
   There is no correction of the first rounds' bias, as in the paper.

Only what is trained is moved. Shared statistics, such as batch norm's running means, are the mix's. m and v stay at the
server, in its checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import Mechanism, Moved, Run, ServerMove, ServerParts
from medpfl.algorithms.mixing import Samples
from medpfl.core.mixing import reckoned_in
from medpfl.core.parameters import State
from medpfl.core.settings import Settings, defaults, setting

Optimizer = Literal["sgd", "adam", "yogi", "adagrad"]
_WITHOUT: dict[str, tuple[str, ...]] = {
    "sgd": ("server_square_decay", "server_eps"),
    "adagrad": ("server_square_decay",),
}
"""Settings that an optimizer has not."""


class ServerOptimizerSettings(Settings):
    """The optimizer at the server."""

    server_lr: float = setting(0.0, "rate of the server's steps; 0 takes the mix as it is", symbol="eta", ge=0, le=1e6)
    server_optimizer: Optimizer = setting("sgd", "of the server's steps: sgd, adam, yogi, adagrad")
    server_momentum: float = setting(0.9, "decay of the server's mean step (beta1)", ge=0, lt=1)
    server_square_decay: float = setting(0.99, "decay of its mean squared step (beta2), of adam and yogi", ge=0, lt=1)
    server_eps: float = setting(0.001, "adaptivity: keeps the divisor of its steps from 0", symbol="tau", gt=0)


class ServerOptimizer(Mechanism):
    """Steps 2 and 3."""

    settings_class = ServerOptimizerSettings
    name = "server_optimizer"
    switch = "server_lr"

    def refuses(self, run: Run) -> str | None:
        """What would change nothing."""
        of = self.settings
        for name in _WITHOUT.get(of.server_optimizer, ()):
            if getattr(of, name) != defaults(ServerOptimizerSettings)[name]:
                having = ", ".join(rule for rule in get_args(Optimizer) if name not in _WITHOUT.get(rule, ()))
                return f"setting {name} has no meaning for server_optimizer={of.server_optimizer}, but for {having}"
        return None

    def at_server(self, run: Run) -> str:
        """The move."""
        of = self.settings
        how = f"{of.server_optimizer} at rate {of.server_lr:g}, momentum {of.server_momentum:g}"
        return f"the common model moves towards the mix by {how}"

    def server_move(self, parts: ServerParts) -> ServerMove | None:
        """Steps 2 and 3 for what is trained."""
        of, trained = self.settings, parts.split.trained_names(parts.model())

        def move(before: State, mixed: State, kept: State) -> Moved:
            after, new = dict(mixed), {}
            for name in trained:
                mix = mixed[name].to(reckoned_in(mixed[name].dtype))
                x = before[name].to(mix)
                d = mix - x
                mean = kept.get(f"mean/{name}", torch.zeros_like(d)).to(d)
                if of.server_optimizer == "sgd":
                    step = mean = of.server_momentum * mean + d
                else:
                    mean = of.server_momentum * mean + (1 - of.server_momentum) * d
                    square = kept.get(f"square/{name}", torch.full_like(d, of.server_eps**2)).to(d)
                    square = second_moment(of.server_optimizer, square, d, of.server_square_decay)
                    new[f"square/{name}"] = square
                    step = mean / (square.sqrt() + of.server_eps)
                new[f"mean/{name}"] = mean
                after[name] = (x + of.server_lr * step).to(mixed[name].dtype)
            return Moved(after, new)

        return move


def second_moment(rule: Optimizer, square: Tensor, step: Tensor, decay: float) -> Tensor:
    """v after a step d, element by element (Reddi et al. 2021, algorithm 2).

    Args:
        rule: adagrad: v + d^2; yogi: v - (1 - b2) d^2 sign(v - d^2); adam: b2 v + (1 - b2) d^2.
        square: v, none below 0.
        step: d.
        decay: b2.
    """
    squared = step.square()
    if rule == "adagrad":
        return square + squared
    if rule == "yogi":
        return square - (1 - decay) * squared * torch.sign(square - squared)
    return decay * square + (1 - decay) * squared


FEDAVGM = Algorithm(
    name="fedavgm",
    title="FedAvgM",
    paper="Hsu et al., arXiv:1909.06335",
    summary="FedAvg with momentum at the server",
    mixing=Samples,
    mechanisms=(ServerOptimizer,),
    settings={"server_lr": 1.0},
)
FEDADAM = Algorithm(
    name="fedadam",
    title="FedAdam",
    paper="Reddi et al., ICLR 2021",
    summary="the server moves the common model by Adam along the sites' mean step",
    mixing=Samples,
    mechanisms=(ServerOptimizer,),
    settings={"server_lr": 0.01, "server_optimizer": "adam"},
)
FEDYOGI = replace(
    FEDADAM,
    name="fedyogi",
    title="FedYogi",
    summary="the server moves the common model by Yogi along the sites' mean step",
    settings={**FEDADAM.settings, "server_optimizer": "yogi"},
)
