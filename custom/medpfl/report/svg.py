"""The few shapes the figures are made of, as SVG that takes its colours from the page (``templates/page.css``).

Not matplotlib's: 76 MB more to install and half a second to start, and its SVG is four to seven times as large (a curve
10 kB, 20 sites by 11 classes 149 kB), has one set of colours for light and dark, and says nothing under the pointer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

_NOTHING = 1e-9
"""What a value as near to 0 as this is drawn as."""
# Mean advance of a 12 px sans-serif character; only for leaving enough room.
_CHARACTER = 6.6
_TICK = 6
"""Characters of a tick's label for which the charts leave room."""


def number(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, anchor: str = "start", css: str = "", turn: float = 0) -> str:
    """A label; ``turn`` in degrees around its own anchor."""
    attributes = f' class="{css}"' if css else ""
    if anchor != "start":
        attributes += f' text-anchor="{anchor}"'
    if turn:
        attributes += f' transform="rotate({number(turn)} {number(x)} {number(y)})"'
    return f'<text x="{number(x)}" y="{number(y)}"{attributes}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<path class="{css}" d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"/>'


def path(points: list[tuple[float, float]], css: str, closed: bool = False) -> str:
    """A line through the points, or the area they enclose."""
    steps = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f'<path class="{css}" d="M{steps}{"Z" if closed else ""}"/>'


def dot(x: float, y: float, radius: float, css: str, hover: str = "") -> str:
    """A filled circle that says what it is under the pointer."""
    shape = f'<circle class="{css}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"'
    return f"{shape}><title>{escape(hover)}</title></circle>" if hover else f"{shape}/>"


def drawing(width: float, height: float, description: str, parts: list[str]) -> Markup:
    """The whole figure; ``description`` is what a screen reader says."""
    size = f"{math.ceil(width)} {math.ceil(height)}"
    # On a phone a figure shrinks only as far as its labels stay readable; then its frame scrolls.
    least = min(math.ceil(width), max(360, math.ceil(0.68 * width)))
    return Markup(
        f'<div class="figure" tabindex="0"><svg role="img" aria-label="{escape(description)}" viewBox="0 0 {size}" '
        f'style="max-width:{math.ceil(width)}px;min-width:{least}px">{"".join(parts)}</svg></div>'
    )


def text_width(content: str) -> float:
    """About how wide a 12 px label is."""
    return _CHARACTER * len(content)


def shortened(content: str, length: int) -> str:
    """The text, cut where it would not fit."""
    return content if len(content) <= length else content[: length - 1] + "…"


@dataclass(frozen=True)
class Scale:
    """Data values to pixels, linear."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (steps of 1, 2 or 5) that enclose low..high."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-3):
        margin = 0.1 * abs(low) if abs(low) > _NOTHING else 0.5
        low, high = low - margin, high + margin
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda factor: abs(factor * power - rough))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * index, 12) for index in range(first, last + 1)]


def round_ticks(first: int, last: int) -> list[int]:
    """Rounds to label: the first, and round numbers that are not too close to it."""
    values = ticks(first, last, 8)
    step = max(1, round(values[1] - values[0]))
    return [first, *(n for n in range(step * (first // step), last + 1, step) if n - first > 0.6 * step)]


def tick_label(value: float, values: list[float]) -> str:
    """The tick with as many decimals as its neighbours need; as 2e9 where one of them has more characters than fit."""
    step = values[1] - values[0] if len(values) > 1 else 1
    place = math.floor(math.log10(step) + 1e-9)
    told = {one: f"{one:.{max(0, -place)}f}" for one in (*values, value)}
    if max(map(len, told.values())) <= _TICK:
        return told[value]
    if value == 0:
        return "0"
    digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - place)
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return min(f"{mantissa}e{int(exponent)}", told[value], key=len)


def rows_of_values(title: str, steps: list[float], y: Scale, left: float, right: float) -> list[str]:
    """A grid of values one above the other, with their labels, under a title."""
    parts = [text(0, 11, title, css="axis")]
    for step in steps:
        parts.append(line(left, y(step), right, y(step), "grid"))
        parts.append(text(left - 6, y(step) + 4, tick_label(step, steps), "end", "tick"))
    return parts


def columns_of_values(title: str, steps: list[float], x: Scale, top: float, floor: float, middle: float) -> list[str]:
    """A grid of values side by side, with their labels, over a title."""
    parts = []
    for step in steps:
        parts.append(line(x(step), top, x(step), floor, "grid"))
        parts.append(text(x(step), floor + 17, tick_label(step, steps), "middle", "tick"))
    return [*parts, text(middle, floor + 36, title, "middle", "axis")]
