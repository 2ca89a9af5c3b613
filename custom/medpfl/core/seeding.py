"""Every random choice derives from (seed, who, when, what for), so a run repeats bit for bit in any engine."""

import hashlib
from dataclasses import dataclass

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive_seed(0, "site-3", 12, "shuffle")``.

    Args:
        seed: the seed of the run.
        purpose: what the random numbers are for; every distinct tuple gives an independent seed.
    """
    text = "\x1f".join([str(int(seed)), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator seeded with :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


@dataclass(frozen=True)
class Chance:
    """What a site draws at random while it trains: the order of samples, augmentation, dropout.

    Attributes:
        seed: all derives from it.
        draws: so many rounds differ in what they draw, after which the first of them comes again; 0 for all.
    """

    seed: int
    draws: int = 0

    def order(self, site: str, when: str | int, purpose: str) -> torch.Generator:
        """Random numbers of a site for a purpose, in a round or whenever else (``join``, ``end``)."""
        round_ = when % self.draws if self.draws and isinstance(when, int) else when
        return generator(self.seed, site, round_, purpose)
