"""FedCurv: what the other sites' data hold fast is not moved.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak: Overcoming forgetting in federated learning on non-IID
data. NeurIPS workshop on federated learning for data privacy and confidentiality, 2019.

1. After its training site j has theta_j, and the diagonal I_j of the Fisher information of its data there. It sends
   I_j and I_j theta_j beside its update.
2. The server adds them up over the sites of the round: u = sum_j I_j, v = sum_j I_j theta_j, and sends both to all with
   the next round, v as the parameters v / u. Models are averaged as in FedAvg.
3. Site i takes its own away and minimises
   L_i(theta) + lambda sum_{j != i} (theta - theta_j)^T diag(I_j) (theta - theta_j), which is
   L_i(theta) + lambda sum (u - I_i) theta^2 - 2 lambda sum (v - I_i theta_i) theta but for a constant.

All is of what is shared and trained. Decided here: I_j is the mean over the site's training samples of the squared
gradient of each one's log-likelihood, with its own label (the empirical Fisher), in eval mode, so that samples do not
meet in batch norm; and lambda is 1 where nobody says (FedReg's authors ran it with 1e-5 to 1e-3). A step of SGD
diverges where lr lambda u is above 1: where 2 lr lambda (u - I_i) would be above 1 it is 1, so that a step without
momentum goes no farther than to where the penalty pulls. (A bias before batch norm is the first to pass it: no effect
in training, and large information in eval mode.) A site that fits its data well has far less information than one
that does not, up to a hundred times: the server scales none of it back, since a site takes away what it sent, and so
nobody is guarded against one that sends very much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run, ServerParts, ServerStep, Step, Turn
from medpfl.algorithms.mixing import Samples
from medpfl.core.channels import LARGEST, Channel, like
from medpfl.core.errors import UserError
from medpfl.core.layers import evaluating
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import SiteData
from medpfl.models import logits
from medpfl.training.loop import Loss
from medpfl.training.part import Outcome, Part
from medpfl.training.steps import Count, counted

_TOGETHER = 2**24
"""Numbers of gradients, one a sample, that are held at once."""
_SENT = "round"
"""In the state that a site keeps: of which round its own part of the sums is."""
_REVEALS = (
    "from Fisher information: how much each parameter matters to the site's training samples, mean squares of single "
    "ones' gradients; where these are few, much the same as from updates"
)


class CurvatureSettings(Settings):
    """How fast."""

    curvature: float = setting(
        0.0, "weight of the penalty on moving what matters to the others' data", symbol="lambda", ge=0
    )


class Curvature(Mechanism):
    """Steps 1 to 3."""

    settings_class = CurvatureSettings
    name = "curvature"
    switch = "curvature"
    newcomer = Rule("no penalty", "the sums are of the sites that trained, and travel with their rounds")

    def refuses(self, run: Run) -> str | None:
        """What has no likelihood, what would leave unprotected, and slices."""
        if not run.learned.one_class:
            return f"curvature rests on the likelihood of one class a sample; {run.learned.name} has none"
        if run.all_settings.get("update_clip"):
            return "update_clip covers the update, and Fisher information would leave beside it as it is"
        if "heads:" in run.resolved_personal:
            return "curvature is of whole parameters, and with heads:P parts of some are personal"
        return None

    def objective(self, run: Run) -> str:
        """Step 3."""
        return f"{run.all_settings['curvature']} sum over the others of their Fisher information times (psi - theirs)^2"

    def at_server(self, run: Run) -> str:
        """Step 2."""
        return "sums of the sites' Fisher information, after every round"

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """I and I theta up, u and v / u down; the latter are parameters, and guarded as such."""
        shared = split.shared_views(model)
        if not shared:
            raise UserError("curvature needs something that is shared and trained")
        up = {f"{name}/weighted": entry for name, entry in like(shared).items()}
        down = dict(like(shared))
        for side in (up, down):
            side |= {f"{name}/information": entry for name, entry in like(shared, least=0).items()}
        what = "sums over the sites of their Fisher information, and their parameters weighted by it"
        return (
            Channel(self.name, False, down, ("train",), what, from_round=2, steers=True),
            Channel(self.name, True, up, ("train",), "its Fisher information", _REVEALS, joined="mean", spreads=True),
        )

    def begin(self, round_: LocalRound) -> Part:
        """Steps 1 and 3."""
        trained = round_.split.shared_views(round_.model)
        sums, own = round_.brought(self.name), _of_round(round_.kept_counted(), round_.when)
        if self.name in round_.message.asked:
            round_.data.batches("train", 1)  # loaders that are made for training alone are refused before it
        limit = _steepest(round_, self.settings.curvature)
        others = {name: _held(*_others(sums, own, name), limit) for name in trained} if sums else {}

        def term() -> Tensor:
            found = [(u * p.square() - 2 * v * p).sum() for (u, v), p in ((others[n], p) for n, p in trained.items())]
            return self.settings.curvature * torch.stack(found).sum()

        def end() -> Outcome:
            if self.name not in round_.message.asked:
                return Outcome()
            names = list(trained)
            information = fisher_information(round_.model, names, round_.data, round_.likelihood)
            after = dict(round_.model.named_parameters())
            sent = {f"{name}/information": information[name] for name in names}
            sent |= {f"{name}/weighted": information[name] * after[name].detach() for name in names}
            return Outcome({**sent, _SENT: torch.tensor(round_.when)}, {self.name: sent})

        return Part(term=term if others else None, end=end)

    def asks(self, channel: Channel, run: Run, state: ServerState, site: str) -> bool:
        """Nobody uses the last round's."""
        return state.round + 1 < run.rounds

    def server_step(self, parts: ServerParts) -> ServerStep:
        """Step 2; a parameter that matters to nobody is the sites' mean, and so is one whose sums no sites' can be.

        What one site sends must not end the run of all: beyond :data:`~medpfl.core.channels.LARGEST` nothing travels.
        """

        def step(turn: Turn) -> Step | None:
            if (mean := turn.sent.get(self.name)) is None:
                return None
            common = turn.mean()
            made: State = {}
            for name in (key.removesuffix("/information") for key in mean if key.endswith("/information")):
                u, v = (turn.present * mean[f"{name}/{which}"] for which in ("information", "weighted"))
                made[f"{name}/information"] = u.clamp(max=min(LARGEST, torch.finfo(u.dtype).max))
                pulls = v / u
                made[name] = torch.where(pulls.abs() <= LARGEST, pulls, common[name].to(u))
            return Step(made)

        return step


def fisher_information(model: nn.Module, names: Sequence[str], data: SiteData, loss: Loss) -> dict[str, Tensor]:
    """The diagonal, by parameter: mean over training samples of the squared gradient of each one's loss, in eval mode.

    Samples that the loss leaves out are none.

    Args:
        model: is afterwards what it was.
        names: of its parameters.
        data: the site's.
        loss: of a batch, the negative log-likelihood of one sample.
    """
    every = {name: p.detach() for name, p in model.named_parameters()}
    parameters = {name: every[name] for name in names}
    size = sum(p.numel() for p in parameters.values())

    def of_one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(logits(functional_call(model, every | values, (x[None],))), y[None])

    each = vmap(grad(of_one), in_dims=(None, 0, 0), chunk_size=max(1, _TOGETHER // size))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    n: Count = 0
    with evaluating(model):
        for x, y in data.batches("train", 32):
            for name, gradients in each(parameters, x, y).items():
                total[name] += gradients.square().sum(0)
            n = n + counted(y)
    return {name: squares / max(int(n), 1) for name, squares in total.items()}


def _of_round(kept: State | None, now: int | str) -> State:
    """The site's own part of the sums that came; nothing if its answer to the round that they are of did not count."""
    return kept if kept is not None and isinstance(now, int) and int(kept[_SENT]) == now - 1 else {}


def _others(sums: Mapping[str, Tensor], own: State, name: str) -> tuple[Tensor, Tensor]:
    """u - I_i and v - I_i theta_i; 0 where rounding leaves no information."""
    u, v = sums[f"{name}/information"], sums[f"{name}/information"] * sums[name]
    if own:
        u, v = u - own[f"{name}/information"].to(u), v - own[f"{name}/weighted"].to(v)
    return u.clamp(min=0), torch.where(u > 0, v, torch.zeros_like(v))


def _steepest(round_: LocalRound, weight: float) -> float:
    """The u at which a step of SGD leads to where the penalty pulls; other optimizers' steps do not grow with it."""
    way = 2 * weight * round_.trainer.lr
    return 1 / way if way > 0 and round_.run.all_settings["optimizer"] == "sgd" else inf


def _held(u: Tensor, v: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """u and v with no u above a limit, and the points v / u to which they pull as they are."""
    share = (limit / u).clamp(max=1)  # 1 where u is 0: infinity is above
    return u * share, v * share


FEDCURV = Algorithm(
    name="fedcurv",
    title="FedCurv",
    paper="Shoham et al., NeurIPS workshop 2019",
    summary="a penalty on moving parameters that matter to the other sites' data",
    mixing=Samples,
    mechanisms=(Curvature,),
    settings={"curvature": 1.0},
)
