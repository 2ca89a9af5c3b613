"""How a site takes its steps in a round: its batches, its optimizer, its rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from medpfl.core.mixing import reckoned_in
from medpfl.core.seeding import changes_of
from medpfl.core.settings import Value
from medpfl.core.site_data import Batch, SiteData
from medpfl.core.stopping import stop_if_asked
from medpfl.training import optimizers, schedule
from medpfl.training.augment import Spec, augmenter
from medpfl.training.memory_format import channels_last_of
from medpfl.training.settings import Training

if TYPE_CHECKING:
    from medpfl.tasks import Task


@dataclass(frozen=True)
class Trainer:
    """What a run says of local training.

    Attributes:
        settings: of training.
        rounds: of the run.
        augment: how training images are changed (:mod:`medpfl.training.augment`).
        lr: the learning rate in force.
    """

    settings: Training
    rounds: int = 1
    augment: Spec = "none"
    lr: float = field(default=0.0)

    @classmethod
    def of(cls, values: Mapping[str, Value], rounds: int = 1, augment: Spec = "none") -> Trainer:
        """From all settings of a run, of which it takes its own; with the rate outside of rounds."""
        settings = Training(**{name: values[name] for name in Training.model_fields if name in values})
        return cls(settings, rounds, augment, settings.lr)

    def at(self, when: int | str) -> Trainer:
        """With the rate of a round; outside of rounds (``join``, ``end``) it is ``lr`` as given.

        A round after the last, in which forgetting is measured, has the last one's.
        """
        if not isinstance(when, int) or when < 1:
            return self.with_lr(self.settings.lr)
        return self.with_lr(schedule.rate(self.settings, min(when, self.rounds), self.rounds))

    def with_lr(self, lr: float) -> Trainer:
        """With another rate."""
        return replace(self, lr=lr)

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self.settings.batch_size

    @property
    def keeps(self) -> bool:
        """Whether a site keeps optimizers' states from round to round."""
        return self.settings.optimizer_state == "kept"

    @property
    def channels_last(self) -> bool:
        """Whether images lie with the channels last."""
        return bool(self.settings.channels_last)

    def repeats(self, *, even: bool) -> bool:
        """Whether rare classes' samples are repeated in an epoch, which is longer for it (:mod:`core.balanced`).

        Args:
            even: whether the order is the same in every round.
        """
        return even and self.settings.sampling == "balanced"

    def steps(self, data: SiteData, *, even: bool) -> int:
        """Steps in an epoch of a site's training data.

        Args:
            data: the site's.
            even: whether the order is the same in every round.
        """
        batches = data.batches_in_epoch(self.batch_size, repeats=self.repeats(even=even))
        return -(-batches // self.settings.accumulate)

    def with_each_once(self) -> Trainer:
        """In whose epochs each sample is once, whatever its class."""
        return replace(self, settings=self.settings.model_copy(update={"sampling": "uniform"}))

    def batches(self, data: SiteData, order: torch.Generator) -> Iterator[Batch]:
        """One epoch of a site's training data, sampled and augmented as the run has it.

        Args:
            data: the site's.
            order: all random numbers come from it (:class:`~medpfl.core.seeding.Order`).
        """
        balanced: dict[str, Any] = {"balanced": True} if self.settings.sampling == "balanced" else {}
        change = augmenter(self.augment)
        for x, y in data.training_batches(self.batch_size, order, **balanced):
            stop_if_asked()
            if change is not None:
                x, y = change(x, y, changes_of(order))
            yield (channels_last_of(x) if self.channels_last else x), y

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """torch's, afresh, at the rate in force."""
        return optimizers.made(self.settings, self.lr, parameters)

    def loss(self, loss: Callable[..., Tensor], data: SiteData) -> Callable[[Tensor, Tensor], Tensor]:
        """A task's loss of a site's own samples, with weights of the classes if the run has them."""
        if self.settings.class_weights != "balanced":
            return loss
        data.class_counts(1)  # loaders of one's own are read for it, which they cannot be in the middle of an epoch
        return partial(_weighted, loss, data, {})

    @property
    def balances(self) -> bool:
        """Whether classes count alike, however many samples they have."""
        return "balanced" in (self.settings.class_weights, self.settings.sampling)

    def refuses(self, learned: Task) -> str | None:
        """Why the settings make no sense together, or for what is learned, in words."""
        settings = self.settings
        balanced = [name for name in ("class_weights", "sampling") if getattr(settings, name) == "balanced"]
        if len(balanced) == 2:
            return "class_weights and sampling would both balance the classes: choose one"
        if balanced and not learned.one_class:
            return f"{balanced[0]}=balanced is for tasks in which a sample is of one class; {learned.name} is none"
        if settings.class_weights == "balanced" and "weight" not in signature(learned.loss).parameters:
            return f"class_weights=balanced: the loss of {learned.name} takes no weights"
        if self.keeps and settings.optimizer == "sgd" and not settings.momentum:
            return "optimizer_state=kept: SGD without momentum has no state to keep; give momentum, or leave it fresh"
        if self.keeps and settings.optimizer in ("rprop", "asgd"):
            return f"optimizer_state=kept: {settings.optimizer}'s state is its rate, and not a round's: leave it fresh"
        return optimizers.problem(settings) or schedule.problem(settings, self.rounds)


def class_weights(counts: Tensor) -> Tensor:
    """n / (K n_c) of K classes that there are, (C,) float32; 0 for a class without samples.

    Args:
        counts: n_c, (C,).
    """
    there = counts > 0
    return torch.where(there, counts.sum() / (there.sum() * counts.clamp(min=1)), 0.0).float()


def _weighted(
    loss: Callable[..., Tensor], data: SiteData, made: dict[int, Tensor], output: Tensor, labels: Tensor
) -> Tensor:
    """The loss with weights, made at the first batch: the network's output says how many classes there are."""
    classes = output.shape[1]
    if classes not in made:
        made[classes] = class_weights(data.class_counts(classes)).to(output.device)
    return loss(output, labels, weight=made[classes].to(reckoned_in(output.dtype)))
