"""A measure: which way it is better, and how a value and a difference of it are printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

NONE = "–"
"""In place of a value that there is not."""
BETTER = "+ is better"
"""Beside gains that a reader might take the other way."""


class Measure(NamedTuple):
    """A number that says how good predictions are.

    A difference that these methods print is a gain: above 0 is better, also where less of a measure is.

    Attributes:
        name: in results.
        title: in print.
        least: that it can be.
        most: that it can be.
        better: which way is better.
        unit: in print; a share has none.
        interval: the name, beside it, of its 95 % interval; empty where it has none.
        selects: a round may be selected by it.
        further: of the test of the selected round alone, and not among the first that reports show.
        what: it is, in a clause that begins with its title and has no full stop.
    """

    name: str
    title: str
    least: float = 0.0
    most: float = 1.0
    better: Literal["higher", "lower"] = "higher"
    unit: str = ""
    interval: str = ""
    selects: bool = True
    further: bool = False
    what: str = ""

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Measure:
        """One of :meth:`described`; what this version does not know is left out."""
        known = {name: said[name] for name in cls._fields if name in said}
        return cls(**known | ({"most": math.inf} if known.get("most", 1.0) is None else {}))

    def described(self) -> dict[str, Any]:
        """As results have it, for whoever reads them without this package."""
        most = None if math.isinf(self.most) else self.most
        return {k: v for k, v in self._asdict().items() if k != "selects"} | {"most": most}

    @property
    def span(self) -> float:
        """The most that it can change by."""
        return min(self.most - self.least, 1e9)

    @property
    def share(self) -> bool:
        """It is a share of 1, so that its differences are in percentage points."""
        return (self.least, self.most, self.unit) == (0, 1, "")

    @property
    def gained_in(self) -> str:
        """What a gain is in: ``points``, its unit, or nothing."""
        return "points" if self.share else self.unit

    @property
    def gained_in_full(self) -> str:
        """The same in a sentence: ``percentage points``."""
        return "percentage points" if self.share else self.unit

    @property
    def titled(self) -> str:
        """``HD95 (mm)``."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def gain(self, value: float, other: float) -> float:
        """How much better a value is than another."""
        return value - other if self.better == "higher" else other - value

    def number(self, value: float) -> str:
        """Without its unit: three digits within -1 and 1, one of a length in mm, else three that matter."""
        if self.least >= -1 and self.most <= 1:
            told = f"{value:.3f}"
        else:
            told = f"{value:.1f}" if self.unit == "mm" else _three(value)
        return told if float(told) else told.removeprefix("-")

    def said(self, value: float) -> str:
        """With its unit."""
        return f"{self.number(value)} {self.unit}".strip()

    def amount(self, gain: float) -> str:
        """The size of a gain, without sign and unit."""
        return f"{abs(100 * gain):.1f}" if self.share else self.number(abs(gain))

    def signed(self, gain: float) -> str:
        """A gain, without its unit: ``+1.2``; no difference has no sign."""
        amount = self.amount(gain)
        return f"{'+' if gain > 0 else '-'}{amount}" if float(amount) else amount

    def told(self, gain: float) -> str:
        """A gain with its unit: ``+1.2 points``."""
        return f"{self.signed(gain)} {self.gained_in}".strip()

    def ends(self, gained: Mapping[str, float]) -> str:
        """Of a gain's interval, ``low`` and ``high``: ``[-0.3, +2.7]``."""
        return f"[{self.signed(gained['low'])}, {self.signed(gained['high'])}]"


LOSS = Measure(
    "loss", "validation loss", most=math.inf, better="lower", what="validation loss is the mean over cases, in nats"
)
"""Not reported of tests: it may select the round."""


def _three(value: float) -> str:
    size = abs(value)
    if size >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".") if size >= 1e-4 else f"{value:.3g}"
