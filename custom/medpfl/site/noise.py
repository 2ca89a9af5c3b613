"""The source of a site's noise of differential privacy, for one answer."""

from __future__ import annotations

from medpfl.config.run import RunConfig
from medpfl.core.noise import NoiseSource
from medpfl.core.seeding import derive_seed
from medpfl.site.contract import Contract


def noise_source(config: RunConfig, site: str, task: str, round_: int, secret: bytes | None) -> NoiseSource:
    """The noise of one answer.

    Args:
        config: the run.
        site: its name.
        task: what is answered.
        round_: of the message.
        secret: of the site, 16 bytes at least; None in a simulation alone.

    Raises:
        ValueError: the secret is too short to be one.
    """
    if secret is not None and len(secret) < 16:
        raise ValueError(f"a secret of {len(secret)} bytes can be guessed: 16 at least")
    # What no contract fixes (device, patience) must not bring other noise to the same answer.
    parts = (Contract(config).hash, site, task, str(round_))
    context = b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts)
    return NoiseSource(derive_seed(config.seed, site, round_, task, "dp"), context, secret)
