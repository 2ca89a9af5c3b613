"""Robust mixings: every value of the common next state is a median or a trimmed mean over the sites.

Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal statistical rates. ICML 2018.
Sites count the same, whatever numbers of samples they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch

from medpfl.algorithms.mechanism import Run
from medpfl.algorithms.mixing_kinds import CommonMixing
from medpfl.core.mixing import reckoned_in
from medpfl.core.parameters import State
from medpfl.core.settings import Settings, setting

LEAST = 3
"""Updates below which a median is a mean."""


class _Robust(CommonMixing):
    least_updates = LEAST
    common = True

    def refuses(self, run: Run) -> str | None:
        """Too few sites to outvote one."""
        if run.sites < LEAST:
            return (
                f"mixing {self.name!r} outvotes a site and needs at least {LEAST} of them, there are "
                f"{run.sites}: use --mixing samples"
            )
        if 0 < run.min_sites < LEAST:
            return (
                f"the quorum of {run.min_sites} is too small for mixing {self.name!r}: of fewer than "
                f"{LEAST} updates none can be outvoted"
            )
        return None


class Median(_Robust):
    """Coordinate-wise median."""

    name = "median"
    what = "coordinate-wise median, the same for all sites (Yin et al.)"

    def mixed(self, updates: Sequence[State]) -> State:
        """With fewer than half of the sites saying what they like, every value stays between the others'."""
        return middle(updates, (len(updates) - 1) // 2)


class Trim(Settings):
    """How much is left out."""

    trim: float = setting(
        0.2, "share left out at each end: of the largest and of the smallest", symbol="beta", ge=0, lt=0.5
    )


class TrimmedMean(_Robust):
    """Coordinate-wise trimmed mean."""

    settings_class = Trim
    name = "trimmed-mean"
    what = "coordinate-wise mean without the share `trim` of the largest and of the smallest (Yin et al.)"

    def mixed(self, updates: Sequence[State]) -> State:
        """Without the ceil(trim M) largest and as many of the smallest of M values, but never all."""
        count = len(updates)
        return middle(updates, min(ceil(self.settings.trim * count - 1e-9), (count - 1) // 2))


def middle(updates: Sequence[State], out: int) -> State:
    """The mean of each value over the sites without the ``out`` largest and smallest.

    The median of an even number is the mean of the middle two.

    Args:
        updates: M states with the same names and shapes; emptied tensor by tensor.
        out: less than M / 2.
    """
    count = len(updates)
    mixed: State = {}
    for name in list(updates[0]):
        stack = torch.stack([u.pop(name) for u in updates])
        kept = stack.to(reckoned_in(stack.dtype)).sort(dim=0).values[out : count - out]
        mixed[name] = kept.mean(dim=0).to(stack.dtype)
    return mixed
