"""The settings of FedImpres."""

from __future__ import annotations

from medpfl.core.settings import Settings, setting


class ImpressionSettings(Settings):
    """How impressions are made, and how much sites learn of them."""

    beta: float = setting(0.0, "weight of the impression's cross-entropy", ge=0)
    warmup: int = setting(15, "rounds of the plain method before the first impression", ge=0)
    images: int = setting(160, "images of an impression", gt=0)
    start: str = setting(
        "noise",
        "what they start from: noise, holdout, held-out (centres), or public images' path",
        at_server=True,
        words=("noise", "holdout", "held-out"),
    )
    admm_iterations: int = setting(5, "outer iterations; 0 leaves the start images with their pseudo-labels", ge=0)
    synthesis_batch: int = setting(16, "images that are moved together, apart from training's `batch_size`", gt=0)
    inner_steps: int = setting(10, "steps on the pixels in each of them", gt=0)
    pixel_lr: float = setting(0.1, "their learning rate", gt=0)
    rho: float = setting(0.2, "penalty of the constraint", ge=0)
    gamma: float = setting(0.01, "weight decay in the constraint", ge=0)
    constraint: int = setting(1, "0 minimises the cross-entropy alone (the paper's ablation)", ge=0, le=1)
