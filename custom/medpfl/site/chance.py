"""Whose the random numbers are that a site draws while it trains: the order of samples, augmentation, dropout.

Of rounds under the same weights each one in another order is another equation in the samples' gradients: who knows the
orders solves them, and who does not separates them blindly once there are several times as many as samples
(docs/privacy.md). In a simulation all derives from the run's seed, so that figures repeat. A hospital has an order of
its own, drawn from its secret, in which it trains in every round of a contract: under the same weights a round has the
same update, but for augmentation, which changes images and not how much each counts. Its batches are as alike in size
as can be: in a smaller last one each sample would weigh more, and two orders would differ by those of few patients.

Each contract has another order. In one order two runs with other batch sizes would end in steps of ten and of eleven
samples, and what differs would be one patient's.
"""

from __future__ import annotations

import hmac

from medpfl.config.run import RunConfig
from medpfl.core.seeding import Chance
from medpfl.site.contract import Contract


def own_chance(config: RunConfig, secret: bytes) -> Chance:
    """From 63 bits that nobody knows who has not the site's secret."""
    drawn = hmac.digest(secret, b"training " + Contract(config).hash.encode(), "sha256")
    return Chance(int.from_bytes(drawn[:8], "big") >> 1, one_order=True)
