"""Whose the random numbers are that a site draws while it trains: the order of samples, augmentation, dropout.

Of rounds under the same weights each one that draws anew is another equation in the samples' gradients: who knows what
was drawn solves them, and who does not separates them blindly once there are several times as many as samples
(docs/privacy.md). In a simulation all derives from the run's seed, so that figures repeat. A hospital draws from its
own secret, and only a few times anew: after those a round under the same weights has the same update, bit for bit.

Each contract has other draws. In one order two runs with other batch sizes would end in steps of ten and of eleven
samples, and what differs would be one patient's.
"""

from __future__ import annotations

import hmac

from medpfl.config.run import RunConfig
from medpfl.core.seeding import Chance
from medpfl.site.contract import Contract

DRAWS = 5
"""Rounds of a contract that differ in what a hospital draws: augmentation varies, and they are far fewer than patients.
"""


def own_chance(config: RunConfig, secret: bytes) -> Chance:
    """From 63 bits that nobody knows who has not the site's secret."""
    drawn = hmac.digest(secret, b"training " + Contract(config).hash.encode(), "sha256")
    return Chance(int.from_bytes(drawn[:8], "big") >> 1, DRAWS)
