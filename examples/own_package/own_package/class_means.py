"""Sites are mixed by how alike their classes look to their networks, and draw features to all sites' class means.

In the way of Xu, Tong, Huang: Personalized federated learning with feature alignment and classifier collaboration. ICLR
2023 (FedPAC), but for its head, whose weights are a quadratic program's, and with whole models mixed.

1. After its training site i sends the mean features m_ic of its classes and their shares s_ic of its samples.
2. With the next round the server sends m_c = sum_i s_ic m_ic / sum_i s_ic.
3. A site minimises its loss + means_align * mean |f(x) - m_y|^2 over a batch's samples (x, y).
4. W_ij is in proportion to exp(-d_ij / means_width), with d_ij the mean of |m_ic - m_jc|^2 over the classes that both
   have, as they came with the round before; by numbers of samples as long as nothing came.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Rule, Run, ServerParts, ServerStep, Step, Turn
from medpfl.algorithms.mixing import by_samples
from medpfl.algorithms.mixing_kinds import MatrixMixing
from medpfl.core.channels import Channel, Entry
from medpfl.core.parameters import ParameterSplit, State
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import SiteData
from medpfl.models import with_features
from medpfl.training.part import Outcome, Part


class ClassMeansSettings(Settings):
    """How much class means count."""

    means_width: float = setting(1.0, "squared distance of class means at which a site's weight falls to 1/e", gt=0)
    means_align: float = setting(0.1, "weight of drawing features to all sites' mean of their class", ge=0)


class ClassMeans(MatrixMixing):
    """Steps 1 to 4."""

    settings_class = ClassMeansSettings
    name = "class-means"  # of the mixing (--mixing class-means), and of its channels
    what = "by how near the mean features of the sites' classes are"
    replaces = ("forward",)
    weighs_sites = True  # so that a hospital's limit on another site's weight holds
    newcomer = Rule("the mean of the sites' models", "it has sent no class means")

    def refuses(self, run: Run) -> str | None:
        """What has no classes, and what would leave unprotected."""
        if not run.learned.one_class:
            return f"class means are of one class a sample; {run.learned.name} has none"
        if run.all_settings.get("update_clip"):
            return "update_clip covers the update, and class means would leave beside it as they are"
        return None

    def objective(self, run: Run) -> str:
        """Step 3."""
        return f"{self.settings.means_align:g} |f(x) - all sites' mean of its class|^2"

    def at_server(self, run: Run) -> str:
        """Step 2."""
        return "all sites' class means, after every round"

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """Means and shares up and down; UserError, in words, where the model has no linear layer that classifies."""
        _, layer = split.classification_layer(model)
        classes, width = layer.weight.shape
        entries = {
            "means": Entry((classes, width), (torch.float32,)),
            "shares": Entry((classes,), (torch.float32,), least=0, most=1.001),
        }
        reveals = "from class means: averages over the images of a class, and how frequent its classes are"
        return (
            Channel(self.name, True, entries, ("train",), "its classes' mean features and shares", reveals),
            Channel(self.name, False, entries, ("train",), "all sites' class means and shares", from_round=2),
        )

    def suits(self, model: nn.Module, split: ParameterSplit, x: Tensor) -> None:
        """There is a row of features for each sample."""
        with_features(model, split.classification_layer(model)[1], x)

    def begin(self, round_: LocalRound) -> Part:
        """Steps 1 and 3."""
        model, common = round_.model, round_.brought(self.name)
        _, layer = round_.split.classification_layer(model)

        def forward(x: Tensor) -> tuple[Tensor, object]:
            output, features = with_features(model, layer, x)

            def alignment(y: Tensor) -> Tensor:
                known = (common["shares"][y] > 0).float()
                away = (features[: len(y)] - common["means"][y]).square().sum(1)
                return self.settings.means_align * (known * away).mean()

            return output, alignment if common else 0.0

        return Part(forward=forward, end=lambda: Outcome(sends={self.name: class_means(model, layer, round_.data)}))

    def server_step(self, parts: ServerParts) -> ServerStep:
        """Step 2, over what each site sent last."""

        def step(turn: Turn) -> Step | None:
            if not (sent := list(turn.state.kept.get(self.name, {}).values())):
                return None
            shares = torch.stack([tensors["shares"] for tensors in sent])  # (M, C)
            means = torch.stack([tensors["means"] for tensors in sent])  # (M, C, F)
            weights = shares / shares.sum(0).clamp(min=1e-12)
            return Step({"means": (weights[:, :, None] * means).sum(0), "shares": shares.mean(0)})

        return step

    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """Step 4."""
        weights, sent = by_samples(run, state), state.kept.get(self.name, {})
        known = [i for i, site in enumerate(run.site_names) if site in sent and sent[site]["shares"].any()]
        for i in known:
            own = sent[run.site_names[i]]
            near = [float(np.exp(-distance(own, sent[run.site_names[j]]) / self.settings.means_width)) for j in known]
            weights[i] = 0
            weights[i, known] = np.array(near) / sum(near)
        return weights


def class_means(model: nn.Module, layer: nn.Linear, data: SiteData) -> State:
    """Means (C, F) of the features of the training samples of each class, 0 of a class without any, and shares (C,)."""
    means, counts = torch.zeros_like(layer.weight.detach()), torch.zeros(layer.out_features, device=layer.weight.device)
    model.eval()
    with torch.no_grad():
        for x, y in data.batches("train", 64):
            means.index_add_(0, y, with_features(model, layer, x)[1])
            counts.index_add_(0, y, torch.ones_like(y, dtype=counts.dtype))
    return {"means": means / counts.clamp(min=1)[:, None], "shares": counts / counts.sum()}


def distance(one: State, other: State) -> float:
    """The mean of |m_c - m'_c|^2 over the classes that both have; infinite, and so no weight, without any."""
    both = (one["shares"] > 0) & (other["shares"] > 0)
    return float((one["means"] - other["means"])[both].square().sum(1).mean()) if both.any() else np.inf


CLASS_MEANS = Algorithm(
    name="class-means",
    title="Class means",
    paper="after Xu et al., ICLR 2023",
    summary="sites are mixed by how near their classes' mean features are, and draw features to all sites' means",
    mixing=ClassMeans,
)
