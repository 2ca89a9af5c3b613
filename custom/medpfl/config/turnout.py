"""How many of a run's sites train in a round, and how many must answer."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Turnout:
    """Of a run.

    Attributes:
        sites: of the run.
        participation: the share of them that trains in a round; 1 where nothing is mixed.
        min_sites: the quorum that the user gave; 0 for none.
        least_updates: of how many updates a mix must be
            (:attr:`medpfl.algorithms.mixing_kinds.Mixing.least_updates`).
    """

    sites: int
    participation: float
    min_sites: int
    least_updates: int

    @property
    def draws(self) -> bool:
        """Whether a share of the sites trains in a round, and the others follow."""
        return self.participation < 1

    @property
    def trained(self) -> int:
        """How many sites are asked to train in a round, where as many are there."""
        return max(1, int(self.participation * self.sites + 1e-9))

    @property
    def quorum(self) -> int:
        """The least number of usable answers of all sites: to the hello, to a round of all, and at the end.

        By default half of the sites, but two where models are mixed: what one site alone sent would reach the others
        as it is. Robust mixing has three: of two updates none can be outvoted.
        """
        return self._quorum_of(self.sites)

    @property
    def quorum_of_round(self) -> int:
        """The same of those that are asked to train."""
        return self._quorum_of(self.trained)

    @property
    def lets_one_through(self) -> bool:
        """Whether the quorum is so small that a mix may be a single site's update as it is."""
        return self.quorum < self._least

    def problem(self, mixing: str) -> str:
        """What is wrong with the numbers, in words; empty for nothing."""
        if self.min_sites > self.sites:
            return f"the quorum of {self.min_sites} sites can never be met by {self.sites} sites"
        of_them = f"participation {self.participation:g} of {self.sites} sites is {self.trained} in a round"
        if self.trained < self._least:
            scale = 10 ** max(2, len(str(self.sites)))
            enough = ceil(scale * self._least / self.sites) / scale
            return f"{of_them}, and mixing {mixing!r} needs {self._least}: give {enough:g} or more"
        if self.min_sites > self.trained:
            return f"{of_them}: they can never meet the quorum of {self.min_sites} sites"
        return ""

    @property
    def _least(self) -> int:
        return min(self.least_updates, self.sites)

    def _quorum_of(self, sites: int) -> int:
        return self.min_sites or max(self._least, (sites + 1) // 2)
