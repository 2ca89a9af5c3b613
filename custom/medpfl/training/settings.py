"""The settings of local training, for every method."""

from __future__ import annotations

from typing import Literal

from medpfl.core.settings import Settings, setting
from medpfl.training.optimizers import OPTIMIZERS


class Training(Settings):
    """How a site takes its steps. ``schedule`` and what follows it count rounds, so that all sites have one rate."""

    lr: float = setting(0.01, "learning rate", gt=0, le=1e38)
    batch_size: int = setting(32, "samples in a step", gt=0)
    momentum: float = setting(0.0, "momentum of SGD or RMSprop", ge=0)
    nesterov: int = setting(0, "1 looks ahead along the momentum", ge=0, le=1)
    weight_decay: float = setting(0.0, "L2 penalty on all parameters; decoupled in AdamW and Adafactor", ge=0, le=1e38)
    optimizer: Literal[OPTIMIZERS] = setting("sgd", "torch's: sgd, adam, adamw, rmsprop, ...")
    beta1: float = setting(0.9, "decay of the mean gradient, in optimizers with betas", ge=0, lt=1)
    beta2: float = setting(0.999, "decay of the mean squared gradient, likewise", ge=0, lt=1)
    square_decay: float = setting(0.0, "RMSprop's alpha, Adadelta's rho; 0 is the optimizer's own", ge=0, lt=1)
    eps: float = setting(0.0, "keeps an adaptive step's divisor from 0; 0 is the optimizer's own", ge=0)
    optimizer_state: Literal["fresh", "kept"] = setting("fresh", "fresh in each round, or kept at the site")
    schedule: Literal["constant", "cosine", "poly", "step"] = setting(
        "constant", "of the rate over the rounds: constant, cosine, poly, step"
    )
    lr_warmup: int = setting(0, "rounds in which the rate rises linearly before", ge=0)
    poly_power: float = setting(0.9, "exponent of schedule poly", gt=0)
    step_rounds: int = setting(10, "rounds between two steps of schedule step", gt=0)
    step_factor: float = setting(0.1, "what each multiplies the rate by", gt=0, lt=1)
    grad_clip: float = setting(0.0, "L2 norm that a step's gradient has at most; 0 is off", ge=0)
    accumulate: int = setting(1, "batches whose gradients make one step", gt=0)
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32", "of forward passes in training: fp32, bf16, fp16")
    channels_last: int = setting(0, "1 lays images and volumes out with the channels last in training", ge=0, le=1)
    class_weights: Literal["none", "balanced"] = setting(
        "none", "of the loss: none, or balanced: inverse to a class's training samples at the site"
    )
    sampling: Literal["uniform", "balanced"] = setting(
        "uniform", "uniform: each sample once an epoch; balanced: drawn so that classes are equally frequent"
    )
