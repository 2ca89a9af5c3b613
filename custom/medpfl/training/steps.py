"""The steps of an optimizer: precision, accumulation over batches, clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from medpfl.core.own_loaders import LEFT_OUT
from medpfl.training.memory import Memory, names_of
from medpfl.training.trainer import Trainer

Count = Tensor | float
"""A number, on a GPU where it is only known there."""
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST_SCALE = 2.0**12
"""Of fp16's losses. torch begins at 2^16 and drops a step for each halving, which a round of ten steps cannot spare."""
_CLIP_EPS = 1e-6
"""What torch adds to the norm that it clips by."""


class Steps:
    """Steps of some of a model's parameters.

    Args:
        trainer: how steps are taken, at the rate in force.
        model: on its device.
        parameters: those to train; what needs no gradient is left out.
        before_step: called with a step's gradients there, before they are clipped.
        after_step: called after each step.
        memory: where the optimizer's state comes from and goes to; None for afresh.
        taken: called after each step with what its gradients were multiplied by before it was taken, 0 where it was
            left out.
    """

    def __init__(
        self,
        trainer: Trainer,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        before_step: Sequence[Callable[[], None]] = (),
        after_step: Sequence[Callable[[], None]] = (),
        memory: Memory | None = None,
        taken: Callable[[Count], None] | None = None,
    ):
        self._settings, self._memory, self._taken = trainer.settings, memory, taken
        self._before_step, self._after_step = before_step, after_step
        self._parameters = [p for p in parameters if p.requires_grad]
        self._device = self._parameters[0].device.type
        self._scaler = torch.amp.GradScaler(self._device, _FIRST_SCALE, enabled=self._settings.precision == "fp16")
        self._optimizer = trainer.optimizer(self._parameters)
        self._names = names_of(model, self._parameters)
        if memory is not None:
            memory.recall(self._optimizer, self._names, self._scaler)
        self._batches = self._samples = 0
        self._optimizer.zero_grad()

    def forward(self) -> AbstractContextManager:
        """Inside, forward passes have the precision asked for; parameters and their gradients stay float32."""
        half = _HALF.get(self._settings.precision)
        return torch.autocast(self._device, half) if half else nullcontext()

    def scale(self, samples: Count) -> Count:
        """What :meth:`backward` multiplies the gradients of a batch of so many samples by."""
        scale = self._scaler.get_scale() if self._scaler.is_enabled() else 1.0
        return scale * self._share(samples)

    def backward(self, loss: Tensor, samples: Count) -> None:
        """The gradients of a batch's mean loss, beside those of the batches that the step has already.

        Args:
            loss: the mean.
            samples: of how many it is (:func:`counted`).
        """
        if self._settings.accumulate > 1:
            loss = loss * self._share(samples)
        self._scaler.scale(loss).backward()
        self._batches += 1
        self._samples = self._samples + samples

    def _share(self, samples: Count) -> Count:
        """By which a batch's loss counts, so that a step has the mean over all samples of its batches."""
        return samples / self._settings.batch_size if self._settings.accumulate > 1 else 1.0

    def step(self) -> None:
        """The optimizer's step, once there are batches enough for it."""
        if self._batches >= self._settings.accumulate:
            self._take()

    def end_epoch(self) -> None:
        """The step of batches that are left: none waits for the next epoch."""
        if self._batches:
            self._take()

    def end(self) -> None:
        """After the last epoch."""
        if self._memory is not None:
            self._memory.keep(self._optimizer, self._names, self._scaler)

    def _take(self) -> None:
        self._scaler.unscale_(self._optimizer)
        share: Count = 1.0
        if self._settings.accumulate > 1:
            share = self._settings.batch_size / _one_at_least(self._samples)
            torch._foreach_mul_([p.grad for p in self._parameters if p.grad is not None], share)
        for change in self._before_step:
            change()
        if self._settings.grad_clip:
            norm = clip_grad_norm_(self._parameters, self._settings.grad_clip, foreach=True)
            share = share * (self._settings.grad_clip / (norm + _CLIP_EPS)).clamp(max=1)
        scale = self._scaler.get_scale() if self._taken else 1.0
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._taken:  # a step of fp16 that overflows is left out, and the next ones' scale is smaller
            left_out = not scale or self._scaler.get_scale() < scale
            self._taken(0.0 if left_out else share / scale)
        self._optimizer.zero_grad()
        for change in self._after_step:
            change()
        self._batches = self._samples = 0


def counted(labels: Tensor) -> Count:
    """Over how many samples a batch's loss is a mean: all but those that it leaves out.

    On a GPU as a tensor, which nobody waits for.

    Args:
        labels: (B,) classes; or masks, or several labels a sample, of which it leaves none out.
    """
    if labels.dim() > 1:
        return len(labels)
    found = (labels != LEFT_OUT).sum()
    return int(found) if labels.device.type == "cpu" else found


def _one_at_least(samples: Count) -> Count:
    return samples.clamp(min=1) if isinstance(samples, Tensor) else max(samples, 1)
