"""Gaussian noise for differential privacy, from a secret of the site.

The run's seed is the server's too: noise from it could be subtracted. At a real site noise comes from a secret that
never leaves. It depends on the run, the site, the task, the round and on what it is added to
(:mod:`medpfl.site.noise`). The same question with the same answer gets the same noise, so that asking again teaches
nothing; another answer never gets the noise of an earlier one, so that their difference does not show it.

Floating-point noise betrays by its last bits what it was added to (Mironov, On significance of the least significant
bits for differential privacy, CCS 2012). Here vectors are first rounded towards zero onto a grid of 2^-20 standard
deviations, which no norm grows by, and added as integers; noise is the continuous Gaussian rounded to the same grid.
For integers x, x + round(z) = round(x + z): the continuous mechanism's answer, rounded afterwards. What is left of
floating point: z comes from 52 random bits, so that nothing lies beyond 8.21 standard deviations and a grid point's
probability is off by about 1e-9 of itself.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import numpy as np

STEPS = 2**20
"""Grid steps in a standard deviation."""

_GUARD = 1 - 1e-12  # rounding in a norm and in a factor must not carry a vector over its bound


@dataclass(frozen=True)
class NoiseSource:
    """Noise for one answer of one site.

    Attributes:
        seed: of the answer, from the run's public seed.
        context: the run, the site, the task and the round, unambiguously.
        secret: the site's; None in a simulation, where all is in one hand and figures must repeat.
    """

    seed: int
    context: bytes
    secret: bytes | None = None

    def gaussian(self, count: int, content: bytes) -> np.ndarray:
        """Rounded Gaussian noise of :data:`STEPS` grid steps' standard deviation, (count,) int64.

        Args:
            count: how many.
            content: all that the noise is added to, with its scale.
        """
        return _rounded_gaussian(self._key(content), count)

    def _key(self, content: bytes) -> bytes:
        if self.secret is None:
            return hashlib.sha256(f"dp\x1f{self.seed}".encode()).digest()
        text = hashlib.sha256(self.context).digest() + hashlib.sha256(content).digest()
        return hmac.new(self.secret, b"medpfl differential privacy" + text, hashlib.sha256).digest()


def clip_factor(norm: float, bound: float) -> float:
    """What brings a vector of this L2 norm to the bound at most."""
    return 1.0 if norm <= bound * _GUARD else bound * _GUARD / norm


def on_grid(values: np.ndarray, deviation: float) -> np.ndarray:
    """Whole numbers of grid steps for noise of this standard deviation, towards zero: int64.

    Raises:
        ValueError: a value is not finite: no noise would hide it.
    """
    if not np.isfinite(values).all():
        raise ValueError("a value that is not finite cannot be hidden by noise")
    return np.trunc(values * (STEPS / deviation)).astype(np.int64)


def noised(steps: np.ndarray, deviation: float, source: NoiseSource) -> np.ndarray:
    """Grid steps with noise of this standard deviation, as values: float64 of the same shape."""
    content = np.float64(deviation).tobytes() + np.ascontiguousarray(steps, np.int64).tobytes()
    return (steps + source.gaussian(steps.size, content).reshape(steps.shape)) * (deviation / STEPS)


def _rounded_gaussian(key: bytes, count: int) -> np.ndarray:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    # A stream cipher, since numpy's and torch's generators can be run backwards from what they gave.
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return _gaussian_of(np.frombuffer(stream, "<u8"))


def _gaussian_of(bits: np.ndarray) -> np.ndarray:
    """Of random whole numbers of 64 bits, (count,) int64. With 53 of them the half above the last would round to 1."""
    from scipy.special import ndtri

    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.rint(ndtri(uniform) * STEPS).astype(np.int64)
