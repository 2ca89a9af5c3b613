"""FedImpres: the server distils its model into a few synthetic images, and every site trains with them too.

Federated Impression for Learning with Distributed Heterogeneous Data, 2024.

1. After ``warmup`` rounds of FedAvg, and then after every round, the server makes a federated impression: ``images``
   images that start from noise, from public images or from an unlabelled medical set (``start``), bear the server
   model's own predictions as labels, and are moved by ADMM (:mod:`medpfl.algorithms.fedimpres.synthesis`, eqs. 2 to 4).
2. A site minimises CE(local) + beta CE(impression) (eq. 5), as two terms of one pass
   (:mod:`medpfl.training.objective`), so that they do not forget what the server's model knows.

``constraint=0`` is the paper's ablation (cross-entropy alone); ``admm_iterations=0`` our control: the start images with
their pseudo-labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.fedimpres.impress import BRIGHTEST, impression_maker
from medpfl.algorithms.fedimpres.picture import picture
from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.start_images import start_images
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Run, ServerParts, ServerStep, Step, Turn
from medpfl.algorithms.mixing import Samples
from medpfl.core.channels import Channel, Entry
from medpfl.core.errors import UserError
from medpfl.core.parameters import ParameterSplit
from medpfl.core.reasons import Reason
from medpfl.core.server_state import ServerState
from medpfl.core.site_data import endless_batches
from medpfl.models import logits
from medpfl.training.part import Beside, Part

NOT_AT_THE_END = Reason("{model} does not end in its last linear layer: an impression needs a net that does")


class Impression(Mechanism):
    """The federated impression: a step at the server after each round, and a second term at the sites."""

    settings_class = ImpressionSettings
    name = "impression"
    switch = "beta"
    resists_forgetting = True
    words = (NOT_AT_THE_END,)

    def refuses(self, run: Run) -> str | None:
        """Nothing to start from, a run that ends before the first impression, or labels that are no single classes."""
        if not run.learned.one_class:
            return f"impressions have pseudo-labels, one class each; {run.learned.name} has other labels"
        if self.settings.start == "holdout" and not run.holdout:
            return "start=holdout needs images that are set aside: give --holdout, e.g. 0.1"
        if self.settings.start == "held-out" and not run.held_out:
            return "start=held-out needs a centre that takes no part in training: give --held-out, a number or names"
        if self.settings.warmup >= run.rounds:
            return (
                f"warmup={self.settings.warmup} leaves no round with an impression: the run has {run.rounds} "
                "(--rounds); give a smaller warmup"
            )
        return None

    def objective(self, run: Run) -> str:
        """The paper's equation 5."""
        return f"{run.all_settings['beta']} cross-entropy of the impression"

    def at_server(self, run: Run) -> str:
        """Step 1."""
        return "a federated impression after every round from the warm-up on"

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """Images to train with, as many as the method has, no brighter than images are, and of classes that there are.

        UserError where the model has no linear layer that classifies: its gradient is the constraint.
        """
        _, layer = split.classification_layer(model)
        many = self.settings.images
        entries = {
            "images": Entry((None, -1, -1, -1), (torch.float16,), -BRIGHTEST, BRIGHTEST, longest=many),
            "labels": Entry((None,), (torch.uint8, torch.int64), 0, layer.out_features - 1, longest=many),
        }
        what = "images to train with that the server has made of its model"
        return (Channel(self.name, False, entries, ("train", "join"), what, from_round=self.settings.warmup + 1),)

    def suits(self, model: nn.Module, split: ParameterSplit, x: Tensor) -> None:
        """M is the gradient of the last layer's weight only if the network ends in that layer."""
        _, layer = split.classification_layer(model)
        given: list[Tensor] = []
        hook = layer.register_forward_hook(lambda _, inputs, output: given.append(output))
        try:
            with torch.no_grad():
                scores = logits(model(x))
        finally:
            hook.remove()
        if not given or given[-1].shape != scores.shape or not torch.equal(given[-1], scores):
            raise UserError(NOT_AT_THE_END(type(model).__name__))

    def begin(self, round_: LocalRound) -> Part | None:
        """Step 2: batches of the impression beside the site's own."""
        if not (brought := round_.brought(self.name)):
            return None
        order, size = round_.order("impression"), round_.run.all_settings["batch_size"]
        batches = endless_batches(brought["images"], brought["labels"].long(), size, order)
        return Part(beside=[Beside(lambda x, y: next(batches), self.settings.beta)])

    def adapts(self, round_: LocalRound) -> Part | None:
        """A site that joins learns of the last impression, too."""
        return self.begin(round_)

    def server_step(self, parts: ServerParts) -> ServerStep:
        """Step 1. A failing synthesis ends no run."""
        start = start_images(self.settings, parts.source, parts.public_images, parts.run.seed)
        impress = impression_maker(parts.split, parts.model, parts.initial_personal, start, self.settings, parts.stop)

        def step(turn: Turn) -> Step | None:
            if turn.state.round < self.settings.warmup:
                return None
            return Step(*impress(turn.mean()))

        return step

    def shown(self, state: ServerState) -> dict[str, Any] | None:
        """The last impression, as a picture of its first images."""
        return picture(state.common.get(self.name, {}))


FEDIMPRES = Algorithm(
    name="fedimpres",
    title="FedImpres",
    paper="Federated Impression, 2024",
    summary="the server synthesises images from its model, sites train on them too",
    mixing=Samples,
    mechanisms=(Impression,),
    settings={"beta": 1.0},
    schedule={"model": "impression-cnn", "rounds": 80, "local_epochs": 5},
    training={"batch_size": 16},
)
