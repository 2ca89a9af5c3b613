"""Where a server's gradients lead a site, by hand."""

import torch
from tiny import config, images

from medpfl.core.messages import Message
from medpfl.engine.federation import Federation
from medpfl.site.steering import led


def test_they_lead_as_far_as_there_are_steps():
    """11 images in batches of 4 are 3 steps an epoch, two epochs 6 steps of 0.1: 0.1, 0.3 and 0.6 of the gradient."""
    federation = Federation.of(config("scaffold", local_epochs=2))
    start = federation.initial_shared
    gradient = {f"control/{k}": torch.ones_like(t) for k, t in start.items() if k.startswith("fc")}
    message = Message("train", 2, start | gradient)
    ways = [
        (start["fc1.weight"] - there["fc1.weight"], start["norm.weight"] - there["norm.weight"])
        for there in led(federation.config, federation.channels, message, images(train=11), even=False)
    ]
    for (moved, left), way in zip(ways, (0.1, 0.3, 0.6), strict=True):
        torch.testing.assert_close(moved, torch.full_like(moved, way))
        assert not left.any()


def test_they_lead_further_where_rare_classes_are_repeated():
    """Of 100, 34 and 12 samples an epoch has 15 steps of ten; in one order 30: 100 + 3 * 34 + 8 * 12 samples."""
    federation = Federation.of(config("scaffold", settings={"sampling": "balanced", "batch_size": 10, "lr": 0.1}))
    start = federation.initial_shared
    message = Message("train", 2, start | {f"control/{k}": torch.ones_like(t) for k, t in start.items()})
    data = images(train=146)
    data.labels["train"] = torch.tensor([0] * 100 + [1] * 34 + [2] * 12)
    for even, steps in ((False, 15), (True, 30)):
        *_, there = led(federation.config, federation.channels, message, data, even=even)
        way = start["fc1.weight"] - there["fc1.weight"]
        torch.testing.assert_close(way, torch.full_like(way, 0.1 * steps))
        assert federation.config.trainer.steps(data, even=even) == steps


def test_images_and_plain_weights_lead_nowhere():
    federation = Federation.of(config("fedimpres", model="tiny:Net", settings={"warmup": 1}))
    message = Message("train", 2, federation.initial_shared | {"impression/images": torch.zeros(1, 1, 4, 4)})
    assert not list(led(federation.config, federation.channels, message, images(), even=False))
