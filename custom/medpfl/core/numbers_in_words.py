"""How numbers are written: counts of things, bytes, sizes of images."""

from __future__ import annotations

from collections.abc import Sequence

from medpfl.core.measure import NONE


def count(number: int, noun: str) -> str:
    """'1 site', '5 sites', '12,000 files'."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def from_to(least: str, most: str) -> str:
    """'3 to 5'; '3' where both are the same."""
    return least if least == most else f"{least} to {most}"


def size(count: float | None) -> str:
    """Bytes in the unit that reads best (powers of 1000)."""
    if count is None:
        return NONE
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.0f} {units[0]}" if units[0] == "B" or count >= 99.95 else f"{count:.1f} {units[0]}"


def by(shape: Sequence[int]) -> str:
    """``28×28``."""
    return "×".join(map(str, shape)) or "a single number"
