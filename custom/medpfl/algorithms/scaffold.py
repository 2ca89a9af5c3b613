"""SCAFFOLD: control variates correct each step of a site for how its data differ from all sites'.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for federated learning. ICML
2020, algorithm 1 with option II and a server step of 1.

1. The server's control c goes with the model; each site has its own c_i, both begin as 0.
2. In each of the K steps of a round y <- y - lr (g(y) - c_i + c) (eq. 3).
3. After it c_i+ = c_i - c + (x - y) / (K lr) (eq. 4, option II), and c_i+ - c_i goes to the server.
4. All sites count the same: x <- mean of the y, c <- c + (sites in the round / all sites) * mean of c_i+ - c_i (eq. 5).

Controls are of what is shared and trained. Their differences are gradients, and may tell what an update tells. c must
stay the mean of the c_i, or it leads away from the optimum for the rest of the run: a site whose answer was lost, came
too late or was refused goes on from the c_i of its last answer that counted, and one whose change was scaled back from
what the server has of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run, ServerParts, ServerStep, Step, Turn
from medpfl.algorithms.mixing import Equal
from medpfl.core.channels import Channel, like
from medpfl.core.errors import UserError
from medpfl.core.messages import named
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, setting
from medpfl.training.part import Outcome, Part

_REVEALS = (
    "from control variates: mean gradients of the site's data, from which the same may be learned as from updates"
)


_CHANGE = "change"
"""In the state that a site keeps: by what its c_i has changed in the round."""
_SENT = "round"
"""Likewise: which round that was."""


class ScaffoldSettings(Settings):
    """On or off."""

    control: int = setting(0, "1 corrects each step by control variates", ge=0, le=1)


class ControlVariates(Mechanism):
    """Steps 1 to 4, but for the mean of the models."""

    settings_class = ScaffoldSettings
    name = "control"
    switch = "control"
    newcomer = Rule("no control variate", "it adapts alone, and there is nothing to correct for")
    lasts = True

    def refuses(self, run: Run) -> str | None:
        """What eq. 4 does not hold for, and what would leave unprotected."""
        for name, plain in {"optimizer": "sgd", "momentum": 0, "grad_clip": 0}.items():
            if run.all_settings[name] != plain:
                other = "another optimizer" if name == "optimizer" else name
                return (
                    f"control variates take (x - y) / (K lr) for the mean gradient; with {other} it is not: "
                    f"use --set {name}={plain}"
                )
        if run.all_settings["precision"] == "fp16":
            return "control variates count the steps, and with precision=fp16 some are dropped: use bf16 or fp32"
        if run.all_settings.get("update_clip"):
            return "update_clip covers the update, and control variates would leave beside it as they are"
        if run.resolved_mixing != "equal":
            return (
                "control variates are joined by their mean, by which steps lead to what is best for all sites alike, "
                f"and mixing {run.resolved_mixing!r} joins models otherwise: use mixing=equal"
            )
        if "heads:" in run.resolved_personal:
            return "control variates are of whole parameters, and with heads:P parts of some are personal"
        return None

    def objective(self, run: Run) -> str:
        """Eq. 3."""
        return "each step by g - c_i + c"

    def at_server(self, run: Run) -> str:
        """Eq. 5."""
        return "the control c from the sites' changes of theirs, after every round"

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """The control both ways."""
        entries = like(split.shared_views(model))
        if not entries:
            raise UserError("control variates need something that is shared and trained")
        what = "the server's control variate"
        down = Channel(self.name, False, entries, ("train",), what, from_round=2, in_each_step=True)
        up = Channel(self.name, True, entries, ("train",), "the change of its control variate", _REVEALS, joined="mean")
        return (down, up)

    def begin(self, round_: LocalRound) -> Part:
        """Steps 2 and 3."""
        trained = round_.split.shared_views(round_.model)  # whole parameters, with their gradients
        before = {name: p.detach().clone() for name, p in trained.items()}
        common = round_.brought(self.name) or {name: torch.zeros_like(p) for name, p in before.items()}
        own = self._own(round_, before)
        steps = 0

        def correct() -> None:
            nonlocal steps
            moving = {name: p for name, p in trained.items() if p.grad is not None}
            steps += bool(moving)  # another mechanism may train what is personal alone for a while
            for name, parameter in moving.items():
                parameter.grad.add_(common[name] - own[name])

        def end() -> Outcome:
            after = {name: p.detach() for name, p in trained.items()}
            new = own_control(own, common, before, after, steps * round_.trainer.lr)
            change = {name: new[name] - own[name] for name in new}
            return Outcome({**new, **named(_CHANGE, change), _SENT: torch.tensor(round_.when)}, {self.name: change})

        return Part(before_step=correct, end=end)

    def _own(self, round_: LocalRound, before: State) -> State:
        """c_i as the server has it."""
        if (kept := round_.kept_counted()) is None:
            return {name: torch.zeros_like(p) for name, p in before.items()}
        kept = {name: tensor.to(round_.device) for name, tensor in kept.items()}
        unused = 1 - round_.message.used_share(self.name)
        if unused and int(kept[_SENT]) == round_.message.counted:  # not where that state is damaged, and this is older
            return {name: kept[name] - unused * kept[f"{_CHANGE}/{name}"] for name in before}
        return {name: kept[name] for name in before}

    def asks(self, channel: Channel, run: Run, state: ServerState, site: str) -> bool:
        """Nobody uses the last round's."""
        return state.round + 1 < run.rounds

    def server_step(self, parts: ServerParts) -> ServerStep:
        """Step 4."""

        def step(turn: Turn) -> Step | None:
            if (mean := turn.sent.get(self.name)) is None:
                return None
            share = turn.present / parts.run.sites
            known = turn.state.common.get(self.name) or {name: torch.zeros_like(t) for name, t in mean.items()}
            return Step({name: known[name] + share * tensor for name, tensor in mean.items()})

        return step


def own_control(own: State, common: State, before: State, after: State, way: float) -> dict[str, Tensor]:
    """A site's next control c_i - c + (x - y) / (K lr) (eq. 4, option II).

    Args:
        own: c_i.
        common: c.
        before: x, what the round began with.
        after: y, what it left.
        way: K lr: steps times learning rate.
    """
    return {name: own[name] - common[name] + (before[name] - after[name]) / way for name in own}


SCAFFOLD = Algorithm(
    name="scaffold",
    title="SCAFFOLD",
    paper="Karimireddy et al., ICML 2020",
    summary="control variates correct each step for how the site's data differ from all sites'",
    mixing=Equal,
    mechanisms=(ControlVariates,),
    settings={"control": 1},
)
