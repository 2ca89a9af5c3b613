"""The seed of what a site draws at random while it trains: the order of samples, augmentation, dropout.

Who knows the order knows how much each sample weighs in an update (a last batch of few samples weighs as much as a full
one), and has one equation for each round: of as many rounds under the same weights as there are samples each one's
gradient follows. Who does not know it needs several times as many, and separates them blindly (docs/privacy.md). In a
simulation it derives from the run's seed, so that figures repeat; a hospital draws it from a secret of its own, another
for each contract, and the same whenever a round is asked for again.
"""

from __future__ import annotations

import hmac

from medpfl.config.run import RunConfig
from medpfl.site.contract import Contract


def own_seed(config: RunConfig, secret: bytes) -> int:
    """63 bits that nobody knows who has not the site's secret."""
    return int.from_bytes(hmac.digest(secret, b"training " + Contract(config).hash.encode(), "sha256")[:8], "big") >> 1
