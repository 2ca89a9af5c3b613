"""Who has which images and who learns from whom, as SVG with a description for those who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from medpfl.core.numbers_in_words import count, from_to
from medpfl.report.svg import dot, drawing, line, number, shortened, text, text_width

_LEVELS = 12


def partition_plot(sites: dict[str, dict[str, int]], classes: Mapping[str, str], samples: str = "images") -> Markup:
    """Class by site; the area of a dot is proportional to the number of samples (as figure 5 of the FedAP paper).

    Args:
        sites: by site its number of samples by class.
        classes: by their key in ``sites`` what stands beside their row, in order.
        samples: what they are.
    """
    cell = max(10, min(30, 560 // max(len(sites), 1)))
    slanted = any(text_width(site) > cell - 4 for site in sites)
    names = [shortened(site, 18) for site in sites]
    kinds = [shortened(name, 18) for name in classes.values()]
    left = 26 + max(map(text_width, kinds))
    foot = 12 + max(map(text_width, names)) if slanted else 20
    tall = max(18, min(26, cell))
    floor = 4 + tall * len(classes)
    width, height = left + cell * len(sites) + 8, floor + foot + 18
    most = max((n for counts in sites.values() for n in counts.values()), default=0)
    parts = [text(11, floor / 2, "class", "middle", "axis", turn=-90)]
    for row, kind in enumerate(kinds):
        middle = 4 + tall * (row + 0.5)
        parts.append(line(left, middle, width - 8, middle, "grid"))
        parts.append(text(left - 7, middle + 4, kind, "end", "tick"))
    for column, (site, counts) in enumerate(sites.items()):
        middle = left + cell * (column + 0.5)
        # With very many sites every label would cover the next.
        if not slanted:
            parts.append(text(middle, floor + 17, names[column], "middle", "tick"))
        elif column % math.ceil(13 / cell) == 0:
            parts.append(text(middle + 4, floor + 9, names[column], "end", "tick", turn=-90))
        for row, (kind, name) in enumerate(classes.items()):
            if n := counts.get(kind, 0):
                radius = max(1.0, (min(cell, tall) / 2 - 0.5) * math.sqrt(n / most))
                hover = f"{site}, class {name}: {n}"
                parts.append(dot(middle, 4 + tall * (row + 0.5), radius, "images", hover))
    title = f"site (largest dot: {most})"
    middle = max(left + cell * len(sites) / 2, text_width(title) / 2)  # below few sites it is wider than the plot
    parts.append(text(middle, height - 2, title, "middle", "axis"))
    held = [sum(map(bool, counts.values())) for counts in sites.values()]
    described = (
        f"{samples.capitalize()} of {len(classes)} classes at {count(len(sites), 'site')}. A site holds "
        f"{from_to(str(min(held)), str(max(held)))} of them; the largest dot stands for {most} {samples}."
    )
    return drawing(max(width, middle + text_width(title) / 2), height, described, parts)


def mixing_heat_map(sites: Sequence[str], matrix: Sequence[Sequence[float]]) -> Markup:
    """Row: the site that receives; column: the site that contributes.

    The diagonal (what a site keeps of its own) is often far larger than the rest, so it is not coloured but framed;
    the colour scale runs over the off-diagonal weights only.
    """
    size = len(sites)
    cell = 44 if size <= 10 else max(6, min(26, 520 // size))
    written = size <= 10
    names = [shortened(site, 18) for site in sites]
    every = math.ceil(13 / cell)
    left, top = 30 + max(map(text_width, names)), 26 + max(map(text_width, names))
    rest = [value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j]
    low, high = (min(rest), max(rest)) if rest else (0.0, 0.0)
    flat = high - low <= 1e-6 * max(high, 1e-12)
    parts = [
        text(left + cell * size / 2, 11, "contributes", "middle", "axis"),
        text(11, top + cell * size / 2, "receives", "middle", "axis", turn=-90),
    ]
    for index, name in enumerate(names):
        if index % every == 0:
            at = cell * (index + 0.5) + 4
            parts.append(text(left - 6, top + at, name, "end", "tick"))
            parts.append(text(left + at, top - 6, name, "start", "tick", turn=-90))
    # One path for each shade instead of one element for each cell keeps 100 sites small.
    shades: dict[int, list[str]] = {}
    labels, frames = [], []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            x, y = left + cell * j, top + cell * i
            square = f"M{number(x)} {number(y)}h{cell - 1}v{cell - 1}h{1 - cell}z"
            shade = _LEVELS // 2 if flat else round(_LEVELS * (value - low) / (high - low))
            (frames if i == j else shades.setdefault(shade, [])).append(square)
            if written:
                css = "own" if i == j else "deep" if shade > 0.55 * _LEVELS else ""
                labels.append(text(x + cell / 2, y + cell / 2 + 4, _weight(value), "middle", css))
    for shade, squares in sorted(shades.items()):
        parts.append(f'<path class="heat" fill-opacity="{_opacity(shade)}" d="{"".join(squares)}"/>')
    parts.append(f'<path class="diagonal" d="{"".join(frames)}"/>')
    parts += labels
    width, height = left + cell * size + 6, top + cell * size + 30
    if rest and not flat:
        swatches = [
            f'<path class="heat" fill-opacity="{_opacity(shade)}" '
            f'd="M{number(left + 44 + 9 * shade)} {number(height - 15)}h9v11h-9z"/>'
            for shade in range(_LEVELS + 1)
        ]
        end = left + 44 + 9 * (_LEVELS + 1)
        parts += [text(left + 39, height - 5, _weight(low), "end", "tick"), *swatches]
        parts.append(text(end + 5, height - 5, _weight(high), "start", "tick"))
        width = max(width, end + 44)
    diagonal = [row[i] for i, row in enumerate(matrix)]
    described = (
        f"Mixing matrix of {count(size, 'site')}. Own weight {_range(diagonal)}"
        + (f"; weight of each other site {_range(rest)}" if rest else "")
        + "."
    )
    return drawing(width, height, described, parts)


def _opacity(shade: int) -> str:
    return f"{0.05 + 0.9 * shade / _LEVELS:.2f}"


def _weight(value: float) -> str:
    return (
        f"{value:.3f}".removeprefix("0") if 0 < value < 0.9995 else f"{value:g}" if value in (0, 1) else f"{value:.2f}"
    )


def _range(values: Sequence[float]) -> str:
    return from_to(*(f"{end:.3f}" for end in (min(values), max(values))))


def mixing_caption(matrix: Sequence[Sequence[float]]) -> str:
    """What the heat map shows, with the diagonal and the range of the rest in numbers."""
    own = [row[i] for i, row in enumerate(matrix)]
    rest = [value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j]
    caption = (
        "A row is the site that receives, a column the site that contributes; every row sums to 1. "
        f"The framed diagonal is what a site keeps of its own (λ in FedAP): {_range(own)}."
    )
    return f"{caption} The colours cover only the other weights, {_range(rest)}." if rest else caption
