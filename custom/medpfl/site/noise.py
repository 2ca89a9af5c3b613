"""The source of a site's noise of differential privacy, for one answer.

Noise depends on what it is added to, and so would be the same wherever that is. Two runs under one contract would then
show, beyond doubt, where an update is the same under other weights, as it is where a patient is not there: in each run
updates have noise of that run alone. Statistics have no memory, and are asked for again until the hello is answered:
their noise is of f, whatever the run. A site that joins, again perhaps, gives them once: their noise is of f and of the
data, however it trains.
"""

from __future__ import annotations

import secrets

import torch

from medpfl.config.run import RunConfig
from medpfl.core.messages import Message
from medpfl.core.noise import NoiseSource
from medpfl.core.seeding import derive_seed
from medpfl.core.site_data import SiteData
from medpfl.core.statefile import fingerprint
from medpfl.site.contract import Contract, without_training
from medpfl.site.store import SiteStore, usable

RUN = "noise"
"""Kind of a state in the site's store: random bytes, drawn at the hello, on which the noise of a run's updates depends
too."""
_BYTES = 16


def noise_source(
    config: RunConfig, site: str, task: str, round_: int, secret: bytes | None, more: str = ""
) -> NoiseSource:
    """The noise of one answer.

    Args:
        config: the run.
        site: its name.
        task: what is answered.
        round_: of the message.
        secret: of the site, 16 bytes at least; None in a simulation alone.
        more: what it depends on besides.

    Raises:
        ValueError: the secret is too short to be one.
    """
    if secret is not None and len(secret) < 16:
        raise ValueError(f"a secret of {len(secret)} bytes can be guessed: 16 at least")
    # What no contract fixes (device, patience) must not bring other noise to the same answer.
    parts = (Contract(config).hash, site, task, str(round_), more)
    context = b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts)
    return NoiseSource(derive_seed(config.seed, site, round_, task, "dp"), context, secret)


def draw_for_run(store: SiteStore) -> str:
    """Draws what the noise of the updates of a run that begins depends on, and keeps it."""
    drawn = secrets.token_bytes(_BYTES)
    store.put(RUN, 0, {"drawn": torch.frombuffer(bytearray(drawn), dtype=torch.uint8)})
    return drawn.hex()


def of_run(store: SiteStore, site: str) -> str:
    """What was drawn, or where that is damaged or gone is drawn anew."""
    kept = usable(store, RUN, 0, site)
    return draw_for_run(store) if kept is None else bytes(kept["drawn"].tolist()).hex()


def of_weights(message: Message) -> str:
    """Under which statistics are taken; nothing where none came."""
    return fingerprint(message.shared) if message.shared else ""


def noise_of_joining(
    config: RunConfig, site: str, message: Message, data: SiteData, secret: bytes | None
) -> NoiseSource:
    """The noise of the statistics of a site that joins.

    Args:
        config: the run, with the site's settings of training.
        site: its name.
        message: brings f.
        data: the site's, which a job that joins says how to read.
        secret: as for :func:`noise_source`.
    """
    more = f"{of_weights(message)} {(data.digest() or b'').hex()}"
    return noise_source(without_training(config), site, "statistics", 0, secret, more)
