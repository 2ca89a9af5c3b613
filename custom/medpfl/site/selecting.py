"""Which round a site selects by its own validation data, where that is not the server's to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from medpfl.config.run import RunConfig
from medpfl.core.messages import Message
from medpfl.core.site_data import SiteData
from medpfl.site.store import BEST, SiteStore, usable
from medpfl.tasks.selection import AUTO, seen, selection


@dataclass(frozen=True)
class Selecting:
    """A site's own selection.

    Attributes:
        name: the site's.
        config: the run.
        data: the site's.
        store: the site's: what was selected so far outlives the process.
    """

    name: str
    config: RunConfig
    data: SiteData
    store: SiteStore

    @cached_property
    def seen(self) -> dict[str, Any]:
        """What the site's validation cases are good for."""
        return seen(self.config.learned, self.data)

    @cached_property
    def measure(self) -> str:
        """By which the site selects where it does so by itself: from its own cases, by the server's rule."""
        return selection(self.config.learned, self.config.select_by, [self.seen])["measure"]

    def asked(self, message: Message) -> str:
        """The run's measure, or where that is left to the hellos what the server has chosen by them."""
        said = self.config.select_by
        return message.info.get("select_by", "") if said == AUTO else said

    def best(self, told: Mapping[str, Any], round_: int) -> int:
        """The best round so far, which this one may be; 0 for none.

        Args:
            told: measures of what the site uses after the round.
            round_: its number.
        """
        best, score = self.so_far()
        value = self.config.learned.score(told, self.measure)
        if value is None or (best and value <= score):
            return best
        self.store.put(BEST, 0, {"round": torch.tensor(round_), "score": torch.tensor(value, dtype=torch.float64)})
        return round_

    def so_far(self) -> tuple[int, float]:
        """The round that the site has selected so far, and its measure; round 0 if there is none."""
        state = usable(self.store, BEST, 0, self.name)
        return (0, 0.0) if state is None else (int(state["round"]), float(state["score"]))
