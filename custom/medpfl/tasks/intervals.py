"""95 % intervals over cases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit


def mean_interval(values: np.ndarray) -> list[float] | None:
    """Student's interval of the mean of values (n,), [low, high]; None for fewer than two."""
    n = len(values)
    if n < 2:
        return None
    half = float(stdtrit(n - 1, 0.975) * values.std(ddof=1) / np.sqrt(n))
    middle = float(values.mean())
    return [middle - half, middle + half]


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float | None], n: int, *, draws: int = 1000
) -> list[float] | None:
    """Percentile interval of a statistic of cases drawn with replacement, [low, high].

    The same cases get the same interval: they are drawn from a fixed seed.

    Args:
        statistic: of the chosen cases' numbers (n,); None where it is not defined, which draws are left out.
        n: how many cases there are.
        draws: of the bootstrap.
    """
    rng = np.random.default_rng(0)
    found = [value for _ in range(draws) if (value := statistic(rng.integers(n, size=n))) is not None]
    return [float(end) for end in np.percentile(found, (2.5, 97.5))] if len(found) > draws / 2 else None
