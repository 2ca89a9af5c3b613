"""What one attack found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from medpfl.audit.victim import Line

Verdict = Literal["passes", "fails", "not tried", "no time"]


@dataclass(frozen=True)
class Finding:
    """What one attack found.

    Attributes:
        attack: its name.
        tried: what was tried, or why not, in words.
        came_back: what came back, in words.
        verdict: ``passes``: it stayed within the limit; ``fails``; ``not tried``: it has no meaning for this run, or
            this audit knows no way; ``no time``.
        limit: the threshold, in words.
        asked: questions to the site.
        answered: how many it answered.
        refusals: the words of its refusals, and how often.
        figures: the numbers, for the report's JSON.
        pairs: training images and what the attack made of them.
    """

    attack: str
    tried: str
    came_back: str
    verdict: Verdict
    limit: str = ""
    asked: int = 0
    answered: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def was_tried(self) -> bool:
        """Whether the attack was carried out: it has a meaning here, and there was time."""
        return self.verdict in ("passes", "fails")

    @classmethod
    def not_tried(cls, attack: str, why: str) -> Finding:
        """An attack that has no meaning for this run, or for which this audit knows no way."""
        return cls(attack, why, "", "not tried")

    @classmethod
    def of(
        cls,
        attack: str,
        line: Line,
        *,
        tried: str,
        came_back: str,
        held: bool,
        limit: str,
        figures: Mapping[str, Any],
        pairs: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Finding:
        """An attack that was tried; ``held`` says whether it stayed within the limit."""
        verdict: Verdict = "passes" if held else "fails"
        refusals = dict(line.refusals.most_common())
        return cls(attack, tried, came_back, verdict, limit, line.asked, line.answered, refusals, figures, pairs or [])

    def as_json(self) -> dict[str, Any]:
        """All but the pictures."""
        names = ("attack", "tried", "came_back", "verdict", "limit", "asked", "answered", "refusals", "figures")
        return {name: getattr(self, name) for name in names}
