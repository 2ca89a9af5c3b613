"""Local training: epochs on a site's objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from medpfl.core.layers import batch_norm_layers
from medpfl.core.reasons import Reason
from medpfl.core.seeding import end_batch, listener, seed_global
from medpfl.core.site_data import SiteData
from medpfl.models import logits
from medpfl.training.memory import Memory
from medpfl.training.memory_format import laid_out
from medpfl.training.steps import Count, Steps, counted
from medpfl.training.trainer import Trainer

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a batch of inputs and labels to the task's loss on it, and to what is minimised."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""From a network's output and labels to the mean over the batch (:meth:`medpfl.tasks.task.Task.loss`)."""


_ADVICE = ": lower the learning rate (lr={number}) or check the data"
NO_LOSS = Reason("the training loss became {nan|inf|-inf}" + _ADVICE)
NO_WEIGHTS = Reason("training led to weights that are not finite" + _ADVICE)
NO_TERM = Reason(
    "the {hook} of {mechanism} became {nan|inf|-inf} while the training loss was finite: put it right, or lower the "
    "learning rate (lr={number})"
)


class TrainingDiverged(RuntimeError):
    """Local training left the finite numbers; the round's result is not used."""


def plain_objective(model: nn.Module, loss: Loss) -> Objective:
    """A task's loss of the model and nothing else."""
    return partial(_plain, model, loss)


def _plain(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    found = loss(logits(model(x)), y)
    return found, found


@contextmanager
def batch_norm_for(model: nn.Module, labels: Tensor, images_per_sample: int) -> Iterator[None]:
    """Inside, a single image goes by batch norm's running statistics: it has none of a batch.

    An image with a mask has those of its pixels, down to where the network looks at few of them.
    """
    alone = labels.dim() <= 2 and len(labels) * images_per_sample == 1
    for layer in batch_norm_layers(model).values() if alone else ():
        layer.eval()
    yield
    if alone:
        model.train()


@contextmanager
def only_these(model: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, no other parameter of the model has a gradient, and none is computed for it."""
    chosen = {id(p) for p in parameters}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    for parameter in others:
        parameter.requires_grad_(False)
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def train_epochs(
    model: nn.Module,
    data: SiteData,
    trainer: Trainer,
    number: int,
    order: torch.Generator,
    objective: Objective,
    *,
    parameters: Sequence[nn.Parameter] | None = None,
    before_step: Sequence[Callable[[], None]] = (),
    after_step: Sequence[Callable[[], None]] = (),
    memory: Memory | None = None,
) -> float:
    """Trains the model in place.

    Args:
        model: on the data's device.
        data: the site's data; its training part must not be empty.
        trainer: takes the steps.
        number: of epochs, passes over the training data.
        order: of the samples, and how they are augmented.
        objective: what every step minimises.
        parameters: the only ones that are trained; all by default.
        before_step: called in every step with the gradients there.
        after_step: called after every step.
        memory: where the optimizer's state comes from and goes to; None starts it afresh.

    Returns:
        Mean of the task's loss per sample over all epochs, without what the objective adds to it.

    Raises:
        TrainingDiverged: the loss became NaN or infinite, or the last step led to weights that are.
    """
    model.train()
    trained = list(model.parameters() if parameters is None else parameters)
    # Summed on the device: reading the loss at every step would make the device wait.
    total: Count = 0.0
    count: Count = 0
    with only_these(model, trained), laid_out(model, channels_last=trainer.channels_last):
        steps = Steps(trainer, model, trained, before_step, after_step, memory, listener(order))
        for _ in range(number):
            for x, y in trainer.batches(data, order):
                with batch_norm_for(model, y, data.images_per_sample):
                    with steps.forward():
                        loss, minimised = objective(x, y)
                    steps.backward(minimised, samples := counted(y))
                    end_batch(order)
                    steps.step()
                total = total + loss.detach().double() * samples
                count = count + samples
            steps.end_epoch()
        steps.end()
    mean = finite_mean(total, count, trainer)
    require_finite(trained, trainer)
    return mean


def train_plainly(
    model: nn.Module,
    data: SiteData,
    trainer: Trainer,
    epochs: int,
    order: torch.Generator,
    loss: Loss,
    memory: Memory | None = None,
) -> float:
    """:func:`train_epochs` on a loss alone; layers like dropout draw from the global generator, seeded by the order."""
    seed_global(order.initial_seed())
    return train_epochs(model, data, trainer, epochs, order, plain_objective(model, loss), memory=memory)


def require_finite(trained: Iterable[nn.Parameter], trainer: Trainer) -> None:
    """Raises TrainingDiverged if the last step led to weights that are NaN or infinite."""
    if not bool(torch.stack([p.detach().isfinite().all() for p in trained if p.requires_grad]).all()):
        raise TrainingDiverged(NO_WEIGHTS(f"{trainer.lr:.3g}"))


def finite_mean(total: Count, count: Count, trainer: Trainer) -> float:
    """The mean loss of a training; 0 of no samples.

    Raises:
        TrainingDiverged: it is NaN or infinite.
    """
    mean = float(total) / max(int(count), 1)
    if not math.isfinite(mean):
        raise TrainingDiverged(NO_LOSS(mean, f"{trainer.lr:.3g}"))
    return mean


@dataclass(frozen=True)
class Epochs:
    """A round's training, for whoever goes about it in another way: what :func:`train_epochs` is called with."""

    model: nn.Module
    data: SiteData
    trainer: Trainer
    number: int
    order: torch.Generator
    objective: Objective
    before_step: Sequence[Callable[[], None]] = ()
    after_step: Sequence[Callable[[], None]] = ()
    memory: Memory | None = None

    def run(self, number: int | None = None, parameters: Sequence[nn.Parameter] | None = None) -> float:
        """Trains, by default all parameters for :attr:`number` epochs; the mean loss per sample."""
        many = self.number if number is None else number
        return train_epochs(**vars(self) | {"number": many, "parameters": parameters})
